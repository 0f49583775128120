import copy

import pytest
import torch
from torch import nn

from rl.learner.optimizer import Optimizer
from rl.learner.settings import OptimizerConfig


def parameters(dtype=torch.float32):
    matrix = torch.arange(6.0).reshape(2, 3) + 1
    return [nn.Parameter(matrix.to(dtype)), nn.Parameter(torch.ones(4, dtype=dtype))]


def give_gradient(params, scale=1.0):
    for i, p in enumerate(params):
        p.grad = torch.full_like(p, scale * (i + 1))


def test_the_first_step_of_adamw_is_the_learning_rate():
    params = parameters()
    before = [p.detach().clone() for p in params]
    optimizer = Optimizer(params, OptimizerConfig(lr=0.01))
    give_gradient(params)
    optimizer.clip_gradients()
    optimizer.step()
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.01, atol=1e-6, rtol=0)
        assert p.grad is None


def test_weight_decay_is_for_matrices():
    params = parameters()
    optimizer = Optimizer(params, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(params[0][0].detach(), torch.tensor([0.95, 1.9, 2.85]))
    assert params[1].tolist() == [1, 1, 1, 1]


def test_the_rate_warms_up_linearly():
    params = parameters()
    optimizer = Optimizer(params, OptimizerConfig(lr=0.4, warmup_steps=4))
    rates = []
    for _ in range(6):
        rates.append(optimizer.learning_rate)
        give_gradient(params)
        optimizer.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    torch.testing.assert_close(params[1].detach(), torch.full((4,), 1 - 1.8), atol=1e-5, rtol=0)


def test_the_rate_decays_to_zero():
    optimizer = Optimizer(parameters(), OptimizerConfig(lr=1.0, warmup_steps=2, decay_steps=4))
    rates = []
    for _ in range(6):
        rates.append(optimizer.learning_rate)
        optimizer.step()
    assert rates == pytest.approx([0.5, 0.75, 0.5, 0.25, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_clipped_to_a_norm(dtype):
    params = parameters(dtype)
    optimizer = Optimizer(params, OptimizerConfig(max_grad_norm=0.5))
    give_gradient(params)
    norm = optimizer.clip_gradients()
    assert norm.item() == pytest.approx((6 * 1 + 4 * 4) ** 0.5)
    stepped = torch.cat([p.grad.flatten() for p in optimizer._stepped])
    assert stepped.norm().item() == pytest.approx(0.5, rel=1e-5)


def test_small_steps_of_bfloat16_weights_are_not_lost():
    """1000 steps of 1e-5 move a weight of 1 by 1e-2; each alone is far below its rounding."""
    params = parameters(torch.bfloat16)
    optimizer = Optimizer(params, OptimizerConfig(lr=1e-5))
    for _ in range(1000):
        give_gradient(params)
        optimizer.clip_gradients()
        optimizer.step()
    assert params[1].dtype == torch.bfloat16
    assert params[1][0].item() == pytest.approx(0.99, abs=2**-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_optimizer_goes_on_bit_for_bit(dtype):
    def run(params, optimizer, steps):
        for scale in steps:
            give_gradient(params, scale)
            optimizer.clip_gradients()
            optimizer.step()

    config = OptimizerConfig(lr=1e-3, warmup_steps=3)
    params = parameters(dtype)
    optimizer = Optimizer(params, config)
    run(params, optimizer, [1, 2])
    resumed = copy.deepcopy(params)
    other = Optimizer(resumed, config)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(params, optimizer, [3, 4, 5])
    run(resumed, other, [3, 4, 5])
    for p, q in zip(params, resumed, strict=True):
        assert torch.equal(p, q)
    assert other.num_steps == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1.0}, r"lr \(-1.0\) must be from 0 to 1"),
        ({"lr": float("nan")}, r"lr \(nan\) must be from 0 to 1"),
        ({"lr": 1e38}, r"lr \(1e\+38\) must be from 0 to 1"),
        ({"warmup_steps": -1}, r"warmup_steps \(-1\) must be >= 0"),
        ({"decay_steps": -1}, r"decay_steps \(-1\) must be >= 0"),
        ({"betas": (0.9, 1.0)}, r"betas \(\(0.9, 1.0\)\) must be two numbers in \[0, 1\)"),
        ({"weight_decay": -0.1}, r"weight_decay \(-0.1\) must be from 0 to 1"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm \(0.0\) must be above 0"),
    ],
)
def test_a_wrong_setting_names_its_key(changes, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**changes)
