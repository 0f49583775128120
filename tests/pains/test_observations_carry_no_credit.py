"""Complaint 7: tokens of tools receive credit as if the policy had sampled them.

verl#6376, miles#1827, Search-R1#21; SkyRL, OpenRLHF and slime run GAE through them.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

import envs
from rl.credit.advantages.math import gae
from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater

TASKS = {"train": range(0, 4), "validation": range(4, 5), "test": range(5, 6)}


class TalkativeEnv(envs.TextEnv[int, None]):
    """Writes long observations."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        return "task"

    def turn(self, action):
        right = {"right": float(action == "1 2")}
        return envs.go_on("3 2 1 say 3 2 1") if self.turns_left > 1 else envs.finish(right)


async def test_a_tools_answer_has_no_gradient(play, toy_model):
    (group,) = await play(TalkativeEnv, lambda _, member, __: "12"[member] + " 2", (0,), 2)
    (longer,) = await play(
        TalkativeEnv, lambda _, member, __: "12"[member] + " 2", (0,), 2, max_turns=3
    )
    for played, turns in ((group, 1), (longer, 3)):
        model = AutoModelForCausalLM.from_pretrained(toy_model)
        states = []

        def watch(module, given, state, states=states):
            if state.requires_grad:
                state.retain_grad()
                states.append(state)

        model.model.norm.register_forward_hook(watch)
        Updater(model, ALGORITHMS["grpo"], OptimizerConfig(lr=1e-3)).update([played])
        reached = sum(int((s.grad != 0).any(-1).sum()) for s in states)
        sampled = sum(t.num_sampled for t in played.trajectories)
        assert sampled == 2 * turns * 4
        assert reached == sampled, "of all hidden states, those that predict a sampled token"


async def test_advantages_skip_a_tools_answer(play):
    (group,) = await play(TalkativeEnv, lambda *_: "0 1 2", max_turns=3)
    mask = torch.tensor(group.trajectories[0].segments[0].loss_mask)
    sampled = mask.bool()
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn((2, 1, int(mask.sum())), generator=generator, dtype=torch.float64)
    alone = gae(reward, value, torch.ones_like(reward), 0.99, 0.9)
    rewards, values = torch.full((2, 1, len(mask)), torch.nan, dtype=torch.float64)
    rewards[0, sampled], values[0, sampled] = reward[0], value[0]
    among = gae(rewards, values, mask[None], 0.99, 0.9)
    for inside, without in zip(among, alone, strict=True):
        torch.testing.assert_close(inside[0, sampled], without[0])
