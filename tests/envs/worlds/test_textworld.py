"""TextWorld's games, played with the library's own solutions."""

from __future__ import annotations

import re

import pytest
from parity import Seen, ours

import envs
from envs.play import gold_of, play

pytest.importorskip("textworld")
pytestmark = pytest.mark.filterwarnings("ignore:.* is not fully supported")

GAMES = {
    "tw-treasure_hunter": '{"level": 3}',
    "tw-coin_collector": '{"level": 4}',
    "tw-simple": "{}",
    "tw-cooking": '{"open": true}',
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("challenge", GAMES)
def test_the_librarys_solution_wins_all_points(challenge):
    env = envs.make("textworld", challenge=challenge, config=GAMES[challenge])
    steps = play(env, gold_of(env), seed=0, task=0).steps
    assert sum(step.reward for step in steps) == pytest.approx(1.0)
    assert steps[-1].terminated
    assert steps[-1].info["scores"] == {"won": 1.0}


@pytest.mark.parametrize("steps", [1, 50])
def test_it_shows_earns_and_ends_as_the_librarys_own_loop(steps):
    import textworld.gym

    env = envs.make("textworld", max_turns=steps)
    env.reset(options={"task": 0})
    path = env.state.path
    solution = list(env.state.last.policy_commands)
    moves = ["look", "dance the tango", "inventory", "", *solution, "look"]
    infos = textworld.EnvInfos(max_score=True, objective=True, won=True)
    game = textworld.gym.make(textworld.gym.register_game(path, infos, max_episode_steps=steps))
    first, info = game.reset()
    shown = [Seen(first[first.index(info["objective"]) :])]
    score, done = 0, False
    for move in moves:
        if done:
            break
        text, now, done, info = game.step(move)
        reward, score = (now - score) / info["max_score"], now
        shown.append(Seen(text, reward, done and info["won"], done and not info["won"]))
    game.close()
    played = ours(env, moves)
    assert [seen[1:] for seen in played] == [seen[1:] for seen in shown]
    # The same words; ours leaves out the prompt, what stands on its line, and empty lines.
    texts = [re.sub(r"\n>[^\n]*\Z", "", seen.text).split() for seen in shown]
    assert [seen.text.split() for seen in played] == texts
    assert played[-1][1:] == ((1.0, True, False) if steps > 1 else (0.0, False, True))


def test_it_shows_what_the_game_prints_and_the_commands_if_asked():
    env = envs.make("textworld", show_commands=True)
    first, _ = env.reset(seed=0, options={"task": 0})
    assert "TextWorld" in first.splitlines()[0]  # the objective, not the library's title in letters
    assert "$$" not in first and "\n>" not in first and "\n\n" not in first
    assert first.splitlines()[-1].startswith("Commands: ")
    assert "inventory" in first.splitlines()[-1]
    text, reward, terminated, _, _ = env.step("dance the täng\n" + "o" * 300)
    assert reward == 0 and not terminated and text


def test_the_turn_limit_ends_the_episode_unwon():
    env = envs.make("textworld", max_turns=2)
    env.reset(seed=0, options={"task": 0})
    assert not env.step("look")[3]
    _, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated) == (0, False, True)
    assert info["scores"] == {"won": 0.0}


def test_a_copy_goes_on_like_the_original():
    env = envs.make("textworld", config='{"level": 3}')
    first, _ = env.reset(seed=0, options={"task": 1})
    env.step(env.gold_policy()(first))
    other = env.fork()
    solution = list(env.state.last.policy_commands)
    for command in solution:
        ours, theirs = env.step(command), other.step(command)
        assert ours[:4] == theirs[:4]
    assert ours[2]


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"challenge \(chess\) must be one of tw-"):
        envs.make("textworld", challenge="chess")
    with pytest.raises(ValueError, match=r"config \(5\) must be a JSON object"):
        envs.make("textworld", config="5")
