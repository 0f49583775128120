"""Agents with a loop of their own are played as environments are: groups, failures, deadlines."""

from __future__ import annotations

import sys
import time

import pytest

from agents.policy import PolicyFailure
from rl.credit.batch import Batch
from rl.rollout.trajectory import Trajectory


def echo(prompt):
    """Repeats the digit before the assistant's turn."""
    return prompt.removesuffix("<|assistant|>").removesuffix("<|end|>")[-1]


@pytest.mark.parametrize("loop", ["copy", "blocking"])
async def test_members_of_a_group_play_the_same_task_with_the_same_seed(play, module, loop):
    groups = await play(loop, echo, tasks=(1, 5), group_size=3)
    assert [[t.task for t in g.trajectories] for g in groups] == [[1] * 3, [5] * 3]
    for group in groups:
        assert len({t.seed for t in group.trajectories}) == 1
        assert [t.member for t in group.trajectories] == [0, 1, 2]
        for t in group.trajectories:
            assert (t.env_id, t.env_options["split"], t.terminated) == ("agent-v0", "train", True)
            assert (t.reward, t.observation, t.turns[0].action) == (
                1.0,
                str(t.task % 3),
                echo(t.observation),
            )
            assert Trajectory.from_json(t.to_json()) == t
    if loop == "copy":
        seen = {(str(t.task % 3), t.seed) for group in groups for t in group.trajectories}
        assert {*module().log} == seen


async def test_conversations_and_forks_are_trained_once(play, digits):
    numbers = iter("01201201")
    (group,) = await play("branches", lambda prompt: next(numbers), group_size=2)
    for t in group.trajectories:
        assert [segment.parent for segment in t.segments] == [None, None, 0]
        assert [turn.rewards for turn in t.turns[:-1]] == [{}, {}, {}]
        assert t.turns[-1].rewards == {"right": 1.0, "brief": 0.5}
        assert t.turns[-1].scores == {"f1": 0.25}
        assert [turn.observation for turn in t.turns] == ["1", "1", "2", ""]
    batch = Batch.from_groups([group])
    assert batch.num_tokens == 2 * 4 * 2
    assert batch.rewards.tolist() == [1.5, 1.5]
    said = sorted(digits.text([token]) for token in batch.targets.tolist()[::2])
    assert said == sorted("01201201")


async def test_a_crash_is_begun_again(play):
    (group,) = await play("crashes_at_first")
    (t,) = group.trajectories
    assert (t.failure, t.attempts, t.reward) == (None, 3, 1.0)


@pytest.mark.parametrize(
    ("loop", "what", "attempts"),
    [
        ("crashes", "EnvFailure: .*crashes raised SystemExit: gave up", 3),
        ("silent", "EnvFailure: the agent's program ended without a reward", 3),
        ("asks_nothing", "EnvFailure: there is a reward, and nothing was asked", 3),
        ("twice", "EnvFailure: the reward that was returned .1. is not taken", 1),
        ("returns_text", "EnvFailure: .*returned 'good': it must return a number", 1),
    ],
)
async def test_no_failure_is_a_reward(play, loop, what, attempts):
    import re

    (group,) = await play(loop)
    (t,) = group.trajectories
    assert re.match(what, t.failure)
    assert t.attempts == attempts
    assert group.finished == []


async def test_a_policy_that_fails_is_no_reward_even_if_the_agent_pays_one(play):
    def fail(prompt):
        raise PolicyFailure("out of order", retryable=True)

    (group,) = await play("swallows", fail)
    assert group.trajectories[0].failure == "PolicyFailure: out of order"
    assert group.trajectories[0].attempts == 3


async def test_an_agent_whose_context_is_full_is_cut_short(play):
    (group,) = await play("talks_on", limits={"context_length": 20})
    (t,) = group.trajectories
    assert (t.failure, t.truncated, t.stop_reason) == (None, True, "context_full")
    assert t.reward == 0.0
    assert len(t.turns) > 2
    assert len(t.segments[0]) <= 20


async def test_an_agent_that_never_ends_is_cut_short(play):
    (group,) = await play("talks_on", max_turns=5)
    (t,) = group.trajectories
    assert (len(t.turns), t.stop_reason) == (5, "turn_limit")


async def test_an_agent_that_hangs_fails_in_time_and_delays_no_other(play):
    began = time.monotonic()
    limits = {"episode_timeout_s": 0.2, "retries": 1}
    (group,) = await play("hangs", group_size=4, limits=limits)
    assert time.monotonic() - began < 20
    for t in group.trajectories:
        assert t.failure == (
            "EpisodeTimeout: took longer than episode_timeout_s (0.2 s), at last waiting for the "
            "agent's program"
        )


async def test_concurrency_limits_the_episodes_at_once(play, module):
    limits = {"episode_timeout_s": 20.0}
    (group,) = await play("counts", group_size=8, concurrency=3, limits=limits)
    assert len(group.finished) == 8
    assert module().most == 3


async def test_a_command_plays_with_its_input_and_its_environment(play, loops):
    began = time.monotonic()
    (group,) = await play(f"{sys.executable} {loops}", echo, tasks=(2,), group_size=2)
    assert [(t.failure, t.reward) for t in group.trajectories] == [(None, 1.0)] * 2
    assert time.monotonic() - began < 50  # Not the time of the processes left behind.


async def test_a_failed_command_reports_its_last_output(play, loops):
    limits = {"retries": 1}
    (group,) = await play(f"{sys.executable} {loops} fail", limits=limits)
    (t,) = group.trajectories
    assert t.failure == f"EnvFailure: {sys.executable} {loops} fail exited with 3: no luck"
    assert t.attempts == 2
