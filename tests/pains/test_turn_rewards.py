"""Complaint 5: rewards of single turns are lost: only the last one, or their sum, is learned.

SkyRL#201, #311.
"""

from __future__ import annotations

import dataclasses

import torch

import envs
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.rollout.trajectory import Trajectory

PAID = (0.25, -0.5, 1.0)
TASKS = {"train": range(0, 4), "validation": range(4, 5), "test": range(5, 6)}


class PayingEnv(envs.TextEnv[int, None]):
    """Gives a reward in every turn."""

    reward_range = (-0.5, 1.25)

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        return "work"

    def turn(self, action):
        turn = self.options.max_turns - self.turns_left
        rewards = {"pay": PAID[turn], "bonus": 0.125}
        return envs.go_on("more", rewards) if turn < 2 else envs.finish(rewards)


async def test_each_turn_keeps_its_reward_until_its_tokens_are_credited(play):
    (group,) = await play(PayingEnv, lambda *_: "1 2", max_turns=3)
    (trajectory,) = (Trajectory.from_json(t.to_json()) for t in group.trajectories)
    assert [turn.rewards["pay"] for turn in trajectory.turns] == list(PAID)
    assert [turn.reward for turn in trajectory.turns] == [pay + 0.125 for pay in PAID]

    batch = Batch.from_groups([group])
    assert batch.turn_rewards.tolist() == [pay + 0.125 for pay in PAID]
    ppo = dataclasses.replace(ALGORITHMS["ppo"], whiten=False)
    zeros = torch.zeros(batch.num_tokens, dtype=torch.float64)
    returns = assign_credit(ppo, batch, values=zeros).returns
    # Each token of a turn gets the sum of this and all later rewards.
    left = [sum(PAID[turn:]) + 0.125 * (3 - turn) for turn in range(3)]
    lengths = [turn.num_tokens for turn in trajectory.turns]
    expected = [worth for worth, n in zip(left, lengths, strict=True) for _ in range(n)]
    assert returns.tolist() == expected
