"""GEM's environments as ours, against GEM itself."""

from __future__ import annotations

import logging
import random
import re
import sys

import numpy as np
import pytest

import envs
from envs.adapters.foreign import ForeignOptions
from envs.adapters.gem import GemEnv
from envs.base.loop import loop_thread
from envs.play import play
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


def test_it_plays_what_gem_plays():
    import gem

    env = make(GuessEnv, seed=2)
    for task in range(5):
        played = play(env, env.gold_policy(), task=task)
        before = random.getstate()
        random.seed(env.tasks[task])  # GEM 0.0.3 does not do so itself.
        theirs = gem.make(GuessEnv.game)
        assert played.first == theirs.reset(seed=env.tasks[task])[0]
        random.setstate(before)
        for action, step in zip(played.actions, played.steps, strict=True):
            assert theirs.step(action)[:3] == step[:3]
        assert played.reward == 1.0


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
