"""Complaint 3: seeds are dropped, so the members of a group play different episodes.

OpenEnv#1102, #1078; TRL#6349. GEM and TextArena seed the global generator, so any
other draw from it changes what a member sees.
"""

from __future__ import annotations

import asyncio
import random

import envs

TASKS = {"train": range(0, 40), "validation": range(40, 50), "test": range(50, 60)}


class DiceEnv(envs.TextEnv[int, int]):
    """Throws dice at the start and after each action; turns take random times."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    async def begin(self, task):
        return await self._throw()

    async def turn(self, action):
        thrown = await self._throw()
        return envs.go_on(thrown) if self.turns_left > 1 else envs.finish({"done": 1.0}, thrown)

    async def _throw(self):
        # Other draws from the global generator, and a different order of episodes each time.
        await asyncio.sleep(random.Random().random() * 0.01)
        random.random()
        return " ".join(map(str, self.np_random.integers(1, 7, 8)))


def seen(trajectory, renderer):
    prompt = trajectory.segments[0].token_ids[: trajectory.segments[0].loss_mask.index(1)]
    return renderer.text(prompt), *(turn.observation for turn in trajectory.turns)


async def test_members_of_a_group_see_the_same_beside_other_draws(play, renderer):
    groups = await play(DiceEnv, lambda *_: "1", range(8), 8, max_turns=4)
    episodes = [{seen(t, renderer) for t in group.trajectories} for group in groups]
    assert [len(members) for members in episodes] == [1] * 8
    assert len(set.union(*episodes)) == 8, "and each group another episode"


async def test_a_seed_determines_an_episode_in_gymnasiums_api_too():
    env = envs.make("mastermind")
    alone = [env.reset(seed=seed)[1]["task"] for seed in range(8)]
    random.seed(0)
    members = [[m.reset(seed=seed)[1]["task"] for m in env.group(4)] for seed in range(8)]
    assert members == [[task] * 4 for task in alone]
    assert len(set(alone)) == 8
