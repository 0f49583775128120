"""Complaint 11: a run waits forever, without a message.

prime-rl#1713, #3140, #2912; TRL#6796, #7103; verl#5815, #3895.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import envs
from agents.scripted import ScriptedPolicy

TASKS = {"train": range(0, 40), "validation": range(40, 50), "test": range(50, 60)}
DEADLINE_S = 0.3
NEVER = threading.Event()


class AwaitingEnv(envs.TextEnv[int, int]):
    """Task 0 awaits an answer that never comes."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        self.state = task
        return "say"

    async def turn(self, action):
        if self.state == 0:
            await asyncio.Event().wait()
        return envs.finish({"a": 1.0})


class StuckEnv(AwaitingEnv):
    """Task 0 blocks its thread forever."""

    blocking = True

    def turn(self, action):
        if self.state == 0:
            NEVER.wait()
        return envs.finish({"a": 1.0})


@pytest.mark.parametrize("env_type", [AwaitingEnv, StuckEnv])
async def test_a_tool_that_never_answers_fails_its_episode_within_the_deadline(play, env_type):
    began = time.perf_counter()
    groups = await play(
        env_type,
        lambda *_: "1",
        range(8),
        step_timeout_s=DEADLINE_S,
        limits={"retries": 1},
    )
    assert time.perf_counter() - began < 30
    first, *others = (group.trajectories[0] for group in groups)
    assert first.failure.startswith("EnvFailure: pain-")
    assert first.failure.endswith("a turn waited longer than step_timeout_s (0.3 s)")
    assert [t.failure for t in others] == [None] * 7


@pytest.mark.quick
async def test_a_policy_that_never_answers_fails_its_episode_and_is_named(play):
    class Mute(ScriptedPolicy):
        async def generate(self, prompt_ids, sampling, session=None):
            await asyncio.Event().wait()

    limits = {"episode_timeout_s": DEADLINE_S, "retries": 0, "max_failed": 1.0}
    (group,) = await play(AwaitingEnv, policy=Mute(lambda *_: []), limits=limits)
    assert group.trajectories[0].failure == (
        "EpisodeTimeout: took longer than episode_timeout_s (0.3 s), at last waiting for the policy"
    )
