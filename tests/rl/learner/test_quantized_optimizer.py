"""AdamW whose averages have 8 bits."""

import copy
import importlib.util

import pytest
import torch
from torch import nn

from rl.learner.optimizer import Optimizer
from rl.learner.settings import OptimizerConfig


def test_without_its_library_it_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"state_bits \(8\) needs bitsandbytes: pip install"):
        OptimizerConfig(state_bits=8)
    with pytest.raises(ValueError, match=r"state_bits \(4\) must be 8 or 32"):
        OptimizerConfig(state_bits=4)


def parameters(dtype):
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(torch.randn(size, generator=generator).to(dtype))
        for size in ((128, 64), (64,))
    ]


def make(dtype=torch.float32, bits=8):
    pytest.importorskip("bitsandbytes")
    params = parameters(dtype)
    config = OptimizerConfig(lr=1e-3, warmup_steps=3, state_bits=bits, weight_decay=0.1)
    return params, Optimizer(params, config)


def step(params, optimizer, number):
    """A step on noise around a slope, as a gradient of a minibatch is."""
    generator = torch.Generator().manual_seed(number)
    loss = 0.0
    for p in params:
        slope = torch.linspace(-1, 1, p.numel()).reshape(p.shape)
        noise = torch.randn(p.shape, generator=generator)
        loss = loss + (p.float() * (slope + 0.5 * noise)).sum()
    optimizer.backward(loss)
    optimizer.clip_gradients()
    optimizer.step()


def test_thirty_steps_are_near_those_with_32_bits():
    moved = []
    for bits in (32, 8):
        params, optimizer = make(bits=bits)
        for number in range(30):
            step(params, optimizer, number)
        moved.append(
            [p.detach() - q for p, q in zip(params, parameters(torch.float32), strict=True)]
        )
    for exact, found in zip(*moved, strict=True):
        assert exact.abs().mean() > 5e-3
        assert (found - exact).norm() < 0.03 * exact.norm()


def test_the_averages_of_a_matrix_have_two_bytes_a_parameter():
    """And 8 bytes for every 256 parameters, and two tables of 1024; small tensors keep 32 bits."""
    params, optimizer = make()
    step(params, optimizer, 0)
    state = optimizer._state()
    of_matrix = sum(x.nbytes for (_, i), x in state.items() if i == 0)
    assert of_matrix == params[0].numel() * (2 + 8 / 256) + 2 * 1024
    assert sum(x.nbytes for (_, i), x in state.items() if i == 1) == 8 * params[1].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_optimizer_goes_on_bit_for_bit(dtype, tmp_path):
    params, optimizer = make(dtype)
    for number in range(2):
        step(params, optimizer, number)
    torch.save(optimizer.state_dict(), tmp_path / "state")
    resumed = copy.deepcopy(params)
    other = Optimizer(resumed, optimizer.config)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for number in range(2, 5):
        step(params, optimizer, number)
        step(resumed, other, number)
    for p, q in zip(params, resumed, strict=True):
        assert torch.equal(p, q)


def test_snapshots_and_offloading_keep_every_bit():
    params, optimizer = make(torch.bfloat16)
    step(params, optimizer, 0)
    before = optimizer.snapshot()
    step(params, optimizer, 1)
    after = copy.deepcopy((params, optimizer.state_dict()))
    step(params, optimizer, 2)
    optimizer.restore(before)
    optimizer.offload()
    optimizer.onload()
    step(params, optimizer, 1)
    torch.testing.assert_close((params, optimizer.state_dict()), after, rtol=0, atol=0)
