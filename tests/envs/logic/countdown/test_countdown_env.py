"""countdown-v0: its protocol, its rewards, its options."""

from __future__ import annotations

import pytest

import envs
from envs.logic.countdown.arithmetic import CountdownTask
from envs.logic.countdown.env import CountdownEnv, CountdownOptions
from envs.play import play


def make(**options) -> CountdownEnv:
    env = CountdownEnv(CountdownOptions(**options))
    env.tasks = [CountdownTask((3, 7, 8, 21), 24)]
    assert env.reset(seed=0)[0] == "Numbers: 3 7 8 21. Make 24."
    return env


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("<think> </think> <answer> 21 / 7 * 8 </answer>", 1.0),
        ("<answer> 3 * 8 </answer>", 1.0),
        ("<answer> 3 + 8 </answer>", 0.1),
        ("<answer> 24 </answer>", 0.0),
        ("<answer> 8 + 8 + 8 </answer>", 0.0),
        ("<answer> 3 * 8 = 24 </answer>", 0.0),
        ("<answer> 3 * 8 </answer> <answer> 3 * 8 </answer>", 0.0),
        ("3 * 8", 0.0),
        ("<answer></answer>", 0.0),
        ("", 0.0),
    ],
)
def test_rewards(action, reward):
    last = make().step(action)
    assert (last.reward, last.terminated, last.observation) == (reward, True, "")
    assert last.info["scores"] == {"solved": float(reward == 1.0), "format": float(reward > 0)}


def test_with_more_turns_mistakes_are_reported():
    env = make(max_turns=4)
    for action, message in (
        ("3 * 8", "There is not exactly one <answer> with its </answer>."),
        ("<answer> 3 / 7 </answer>", "That makes 3/7, not 24."),
        ("<answer> 3 ** 8 </answer>", "No sum: only numbers, + - * / and parentheses may be used."),
    ):
        step = env.step(action)
        assert (step.observation, step.reward, step.terminated) == (message, 0.0, False)
    assert env.step("<answer> 3 * 8 </answer>").reward == 1.0


def test_the_format_is_paid_once_and_at_the_end():
    env = make(max_turns=3)
    rewards = [env.step("<answer> 3 + 8 </answer>").reward for _ in range(3)]
    assert rewards == [0.0, 0.0, 0.1]


def test_use_all():
    env = make(use_all=True)
    assert env.step("<answer> 3 * 8 </answer>").reward == 0.0
    assert "exactly once" in env.system_prompt


@pytest.mark.parametrize("options", [{}, {"numbers": 6, "use_all": True}, {"split": "test"}])
def test_the_gold_policy_is_right(options):
    env = envs.make("countdown", **options)
    for task in range(30):
        assert play(env, env.gold_policy(), task=task).reward == 1.0


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"numbers": 2}, r"numbers \(2\) must be from 3 to 6"),
        ({"largest": 5}, r"largest \(5\) must be from 10 to 100"),
        ({"format_reward": 0.5}, r"format_reward \(0.5\) must be from 0 to 0.3"),
    ],
)
def test_options_out_of_range(option, says):
    with pytest.raises(ValueError, match=says):
        envs.make("countdown", **option)


@pytest.mark.parametrize("options", [{}, {"numbers": 5, "largest": 100, "max_turns": 3}])
def test_it_keeps_the_contract(options):
    assert envs.check_env(envs.make("countdown", **options)).env_id == "countdown-v0"
