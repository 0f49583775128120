"""Complaint 1: one environment that blocks stalls every rollout.

SkyRL#53 (a step takes 30 minutes instead of 4), SkyRL#240, NeMo Gym#2998.

The tests measure no time: a blocking turn waits for an event that needs the other episodes.
"""

from __future__ import annotations

import threading

import envs

LONG_S = 60.0
TASKS = {"train": range(0, 40), "validation": range(40, 50), "test": range(50, 60)}


class BlockingEnv(envs.TextEnv[int, int]):
    """Environment whose turns block their thread, as a database or a compiler does."""

    blocking = True

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        self.state = task
        return f"task {task}"

    def turn(self, action):
        self.work()
        return envs.go_on("again") if self.turns_left > 1 else envs.finish({"done": 1.0})


class OneSlowEnv(BlockingEnv):
    """The first turn of task 0 lasts until the 32 other episodes end."""

    over = threading.Semaphore(0)

    def work(self):
        if self.state == 0 and self.turns_left == 3:
            assert all(self.over.acquire(timeout=LONG_S) for _ in range(32))
        elif self.turns_left == 1:
            self.over.release()


class AllSlowEnv(BlockingEnv):
    """Each turn lasts until 32 turns run."""

    together = threading.Barrier(32, timeout=LONG_S)

    def work(self):
        self.together.wait()


async def test_a_turn_that_blocks_stalls_no_other_episode(play):
    groups = await play(OneSlowEnv, lambda *_: "1", range(33), max_turns=3)
    assert [group.trajectories[0].failure for group in groups] == [None] * 33


async def test_turns_that_block_block_at_the_same_time(play):
    groups = await play(AllSlowEnv, lambda *_: "1", range(32), max_turns=2)
    assert [group.trajectories[0].reward for group in groups] == [1.0] * 32
