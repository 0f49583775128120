"""GEM's environments as ours, against GEM itself."""

from __future__ import annotations

import logging
import random
import re
import sys

import numpy as np
import pytest
from parity import ours, theirs

import envs
from envs.adapters.foreign import ForeignOptions
from envs.adapters.gem import GemEnv
from envs.base.loop import loop_thread
from tools.registry import PluginImportError

pytest.importorskip("gem")


class GuessEnv(GemEnv):
    game = "game:GuessTheNumber-v0-easy"

    def gold_policy(self):
        low, high = 1, 10

        def act(observation):
            nonlocal low, high
            hint = re.search(r"number is (lower|higher) than (\d+)", observation)
            if hint and hint[1] == "lower":
                high = int(hint[2]) - 1
            elif hint:
                low = int(hint[2]) + 1
            return f"\\boxed{{{(low + high) // 2}}}"

        return act


class SudokuEnv(GemEnv):
    """Draws its grid from the global generator, which takes a while."""

    game = "game:Sudoku-v0-easy"


class HardGuessEnv(GuessEnv):
    config = {"max_number": 5}  # noqa: RUF012


def make(kind, **options):
    return kind(ForeignOptions(**options))


class Checked(GuessEnv):
    reward_range = (-0.1, 1.0)
    reward_floor = 1.0
    floor_waiver = "the rules name a guess as an example: said again, it may be right"


def test_a_game_of_gem_keeps_the_contract_with_a_gold_policy_of_its_own():
    report = envs.check_env(make(Checked), num_tasks=4)
    assert report.tasks == (0, 250_000, 500_000, 750_000)


MOVES = {
    "GuessTheNumber": ["\\boxed{5}", "\\boxed{11}", "\\boxed{2}", "\\boxed{8}"],
    "Mastermind": ["\\boxed{1 2}", "\\boxed{3 4}", "\\boxed{1 2}", "\\boxed{1 1}"],
    "Minesweeper": [f"\\boxed{{{act}}}" for act in ("flag 4 4", "reveal 0 0", "reveal 4 0")],
    "Wordle": ["\\boxed{BAT}", "\\boxed{HOUSE}", "\\boxed{HAT}", "none"],
    "FifteenPuzzle": [f"\\boxed{{{way}}}" for way in ("up", "left", "down", "right") * 3],
    "Hangman": ["\\boxed{A}", "\\boxed{A}", "\\boxed{Q}", "\\boxed{DOGS}", "\\boxed{HAT}"],
    "Sudoku": [f"\\boxed{{{row} {row} {row}}}" for row in (1, 2, 3, 4, 9)],
    "TowerofHanoi": ["\\boxed{A C}", "\\boxed{A B}", "\\boxed{A C}"],
}
"""Moves of each game that both tested versions of GEM have; right, wrong, and of no game."""


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A word list where GEM's games look for NLTK's, which they would download."""
    nltk = pytest.importorskip("nltk")
    (tmp_path / "corpora" / "words").mkdir(parents=True)
    for name in ("en", "en-basic"):
        (tmp_path / "corpora" / "words" / name).write_text("cat\nhat\nbat\ndog\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path), *nltk.data.path])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: True)


def latest(game):
    """A game in GEM's own wrapper, of which each turn shows its part alone."""
    from gem.wrappers.observation_wrapper import ObservationWrapper

    class Latest(ObservationWrapper):
        def step(self, action):
            self.obs_queue.clear()
            return super().step(action)

    return Latest(game, include_action=False, include_chat_template=False)


@pytest.mark.parametrize("name", [*MOVES, "Dice"])
def test_the_policy_reads_and_earns_what_gems_own_loop_shows(name, words):
    import gem

    if name == "Dice":
        dice()
    game, moves = (
        f"game:{name}-v0-easy" if name in MOVES else "test:Dice-v0",
        MOVES.get(name, ROLLS),
    )
    env = make(type("Played", (GemEnv,), {"game": game}), seed=2)
    boards = 0
    for task in range(3):
        played = ours(env, moves, task)
        before = random.getstate(), np.random.get_state()
        random.seed(env.tasks[task])  # GEM 0.0.3 does not do so itself.
        np.random.seed(env.tasks[task])
        assert played == theirs(latest(gem.make(game)), moves, env.tasks[task])
        random.setstate(before[0])
        np.random.set_state(before[1])
        boards += sum("board" in seen.text or "grid:" in seen.text for seen in played[:-1])
    assert boards >= 3 * (name in ("Minesweeper", "FifteenPuzzle", "Hangman", "Sudoku"))


def test_prefix_and_suffix_are_shown_once_also_in_a_wrapper_of_gem():
    class Framed(GemEnv):
        game = "test:Dice-v0"

        def make(self):
            return self.wrap(super().make())

    dice()
    framed = make(Framed)
    for framed.wrap in (lambda game: game, latest):
        framed.reset(seed=0)
        inner = framed.state.env.unwrapped
        inner.step = lambda _: ("seen", 0.0, False, False, {"prefix": "P ", "suffix": " S"})
        assert framed.step("a").observation == "P seen\n S"


def test_a_task_of_a_data_set_is_its_seed():
    """GEM's data sets ignore the seed of ``reset`` in 0.0.3; their classes take one."""
    import gem

    class CountEnv(GemEnv):
        game = "rg:leg_counting"

    class SameEnv(CountEnv):
        config = {"seed": 7, "size": 1}  # noqa: RUF012

    env, fixed = make(CountEnv), make(SameEnv)
    firsts = [env.reset(seed=0, options={"task": task})[0] for task in range(8)]
    assert len(set(firsts)) == 8
    assert (
        firsts[3]
        == theirs(latest(gem.make(CountEnv.game, seed=env.tasks[3])), [], env.tasks[3])[0].text
    )
    assert len({fixed.reset(seed=0, options={"task": task})[0] for task in range(4)}) == 1
    assert env.step("\\boxed{1}").terminated


def test_what_a_game_holds_is_closed_at_its_end():
    env = dice()
    env.reset(seed=0)
    closed = []
    env.state.env.close = lambda: closed.append(1)
    env.state.env.step = lambda _: ("over", 0.0, True, True, {})
    last = env.step("a")
    assert (last.terminated, last.truncated, closed) == (True, False, [1])


def test_the_games_settings_reach_gem():
    assert "between 1 and 5 " in make(HardGuessEnv).reset(seed=0)[0]


def test_a_malformed_guess_earns_gems_penalty_and_its_end():
    env = make(GuessEnv)
    env.reset(seed=0)
    last = env.step("seven")
    assert (last.reward, last.terminated) == (-0.1, True)
    assert "did not provide a valid guess" in last.observation


def noise(member):
    """Draws from the generators that GEM takes for its own."""
    random.random()
    np.random.rand()
    return member


def test_a_group_starts_equal_and_global_generators_are_everybody_elses():
    env = make(SudokuEnv, seed=1)
    starts = []
    for member in env.group(4):
        starts.append(noise(member).reset(seed=9))
    assert starts == [starts[0]] * 4
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    env.reset(seed=9)
    env.step("\\boxed{1 1 1}")
    assert (random.random(), np.random.rand()) == expected


def dice():
    """A custom game, registered with GEM, that draws at each step."""
    import gem

    class Dice(gem.Env):
        def reset(self, seed=None):
            super().reset(seed)
            return str(random.random()), {}

        def step(self, action):
            return f"{random.random()} {np.random.rand()}", len(action) / 10, False, False, {}

    globals()["Dice"] = Dice  # So that it pickles by its name.
    Dice.__qualname__ = "Dice"
    registry = sys.modules["gem.envs.registration"].ENV_REGISTRY
    registry.pop("test:Dice-v0", None)
    gem.register("test:Dice-v0", Dice)

    class DiceEnv(GemEnv):
        game = "test:Dice-v0"

    return make(DiceEnv)


ROLLS = ["a", "bb", "ccc", "dddd"]


def test_games_that_draw_in_the_middle_are_the_same_beside_others_and_in_threads():
    env = dice()
    env.reset(seed=3)
    alone = [env.step(move) for move in ROLLS]
    other = dice()
    other.reset(seed=4)
    assert [other.step(move) for move in ROLLS] != alone

    async def together():
        members = env.group(6)
        for member in members:
            await member.areset(seed=3)
        played = [[] for _ in members]
        for move in ROLLS:
            for steps, member in zip(played, members, strict=True):
                steps.append(await noise(member).astep(move))
        return played

    assert loop_thread.run(together()) == [alone] * 6


def test_a_fork_in_mid_game_draws_the_same_numbers():
    env = dice()
    env.reset(seed=3)
    env.step(ROLLS[0])
    twin = env.fork()
    theirs = [noise(twin).step(move) for move in ROLLS[1:]]
    assert [env.step(move) for move in ROLLS[1:]] == theirs


def test_importing_gem_leaves_the_root_logger_alone():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    for name in [name for name in sys.modules if name.split(".")[0] == "gem"]:
        del sys.modules[name]
    make(GuessEnv).reset(seed=0)
    assert (root.handlers, root.level) == before


def test_without_gem_one_line_says_what_to_install(monkeypatch):
    for name in ("gem", "gem.envs.registration"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PluginImportError, match=r"pip install 'turnwise\[gem\]'"):
        make(GuessEnv).reset(seed=0)
