"""State that leaves the device between updates, and copies that an undone update needs."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rl.credit.algorithms import ALGORITHMS
from rl.learner.memory.host import HostBuffers, bring_back
from rl.learner.memory.offloading import Offloader
from rl.learner.optimizer import Optimizer
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.runtime.runtime import Runtime
from tests.helpers.small_learner import build_group, build_model

FAST = OptimizerConfig(lr=1e-2)


def groups():
    return [build_group([[(3, 4, 1.0), (2, 3, 0.0)], [(3, 5, 0.0)]])]


def with_outcomes(groups):
    for group in groups:
        for member, trajectory in enumerate(group.trajectories):
            trajectory.outcome = float(member == 0)
    return groups


def state_of(updater):
    return copy.deepcopy((updater.model.model.state_dict(), updater.state_dict()))


def bytes_of(module):
    return sum(p.nbytes for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["grpo", "kl", "critic", "prime"])
def test_updates_go_on_after_offloading(name, dtype):
    row = {
        "grpo": ALGORITHMS["grpo"],
        "kl": ALGORITHMS["grpo"].changed({"kl.coef": 0.1}),
        "critic": ALGORITHMS["ppo"].changed({"value.critic": "model"}),
        "prime": ALGORITHMS["prime"],
    }[name]
    moving, resident = (Updater(build_model(dtype=dtype), row, FAST).seeded(1) for _ in range(2))
    offloader = Offloader(moving)
    for _ in range(2):
        for updater in (moving, resident):
            updater.update(with_outcomes(groups()))
        offloader.offload()
        torch.testing.assert_close(state_of(moving), state_of(resident), rtol=0, atol=0)
        offloader.onload()
        torch.testing.assert_close(state_of(moving), state_of(resident), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["grpo", "kl"])
def test_everything_but_the_weights_moves(name):
    """Bytes of a bfloat16 parameter: 4 of its copy, 8 of its moments, 2 of the reference's."""
    row = ALGORITHMS["grpo"].changed({"kl.coef": 0.1 if name == "kl" else 0.0})
    model = build_model(dtype=torch.bfloat16)
    count = sum(p.numel() for p in model.parameters())
    updater = Updater(model, row, FAST)
    updater.update(groups())
    moved = Offloader(updater).offload()
    steps = 4 * len(list(model.parameters()))
    assert moved == count * (14 if name == "kl" else 12) + steps
    assert all(p.grad is None for p in (*updater.optimizer._stepped, *model.parameters()))


def test_tensors_move_in_place():
    weight = nn.Parameter(torch.arange(6.0))
    before, host = weight.data_ptr(), HostBuffers()
    assert host.take({("weight", 0): weight}) == 24
    assert weight.data_ptr() != before
    assert weight.tolist() == [0, 1, 2, 3, 4, 5]
    assert weight.requires_grad
    bring_back([weight], torch.device("cpu"))
    assert weight.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_snapshot_restores_any_number_of_times():
    weight = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    optimizer = Optimizer([weight], FAST)

    def step():
        optimizer.backward((weight.float() * torch.arange(6.0).reshape(3, 2)).sum())
        optimizer.clip_gradients()
        optimizer.step()
        return copy.deepcopy((weight.detach(), optimizer.state_dict()))

    step()
    before = optimizer.snapshot()
    after = step()
    for _ in range(2):
        step()
        optimizer.restore(before)
        assert optimizer.num_steps == 1
        torch.testing.assert_close(step(), after, rtol=0, atol=0)


def test_an_undone_update_leaves_an_optimizer_without_moments():
    """The update's first step made the moments; a reset one had dropped older ones."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = Optimizer([weight], replace(FAST, lr=0.1))
    empty = optimizer.snapshot()
    optimizer.backward(weight.sum())
    optimizer.step()
    kept = optimizer.snapshot()
    optimizer.forget()
    optimizer.restore(kept)
    assert optimizer.state_dict()["adamw"]["state"][0]["exp_avg"].tolist() == pytest.approx(
        [0.1] * 2
    )
    optimizer.restore(empty)
    assert optimizer.state_dict()["adamw"]["state"] == {}
    assert weight.tolist() == [1, 1]


class Engine:
    """A policy, or a learner, that records what it is asked."""

    def __init__(self, calls, *, sleeps=True):
        self.calls, self.sleeps = calls, sleeps

    async def sleep(self):
        self.calls.append("sleep")

    async def wake(self):
        self.calls.append("wake")

    async def offload(self):
        self.calls.append("offload")

    async def onload(self):
        self.calls.append("onload")


@pytest.mark.parametrize("sleeps", [True, False])
async def test_learner_and_engine_take_turns_only_if_the_engine_sleeps(sleeps):
    calls = []
    engine = Engine(calls, sleeps=sleeps)
    runtime = SimpleNamespace(policy=engine, learner=engine)
    async with Runtime.learning(runtime):
        calls.append("learns")
    turns = ["sleep", "onload", "learns", "offload", "wake"]
    assert calls == (turns if sleeps else ["learns"])


async def test_a_failed_update_also_frees_the_device_before_the_engine_wakes():
    calls = []
    engine = Engine(calls)
    runtime = SimpleNamespace(policy=engine, learner=engine)
    with pytest.raises(ArithmeticError):
        async with Runtime.learning(runtime):
            raise ArithmeticError
    assert calls == ["sleep", "onload", "offload", "wake"]
