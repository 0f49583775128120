"""The critic: its learning rate, a trunk of its own, and rewards that are whitened for it."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.learner.optimizer import Optimizer
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater

PPO = ALGORITHMS["ppo"].changed({"value.clip": None})
APART = PPO.changed({"value.critic": "model"})


def changed(model, before):
    return {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}


def copied(module):
    return {name: x.clone() for name, x in module.state_dict().items()}


def test_the_critic_has_its_rate_with_the_same_warm_up():
    """AdamW's first step moves each weight by its rate, whatever the gradient."""
    policy, critic = (nn.Parameter(torch.zeros(2, 2)) for _ in range(2))
    config = OptimizerConfig(lr=0.01, critic_lr=0.1, warmup_steps=2, max_grad_norm=1e9)
    optimizer = Optimizer([policy, critic], config, [critic])
    (policy.sum() + critic.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(policy, torch.full((2, 2), -0.005), rtol=1e-4, atol=0)
    torch.testing.assert_close(critic, torch.full((2, 2), -0.05), rtol=1e-4, atol=0)
    assert optimizer.learning_rate == 0.01


@pytest.mark.parametrize("row", [PPO, APART], ids=["head", "model"])
def test_a_critic_learns_while_the_policy_does_not_change(make_model, groups, row):
    model = make_model()
    before = copied(model)
    config = OptimizerConfig(lr=0.0, critic_lr=0.01, max_grad_norm=1e9)
    learner = Updater(model, row, config)
    metrics = [learner.update(groups) for _ in range(30)]
    assert not changed(model, before)
    assert metrics[0]["explained_variance"] < 0.01
    assert metrics[-1]["explained_variance"] > 0.5
    assert metrics[-1]["value_loss"] < 0.5 * metrics[0]["value_loss"]


def test_values_of_a_separate_trunk_do_not_change_the_policy(make_model, groups):
    def trained(row):
        torch.manual_seed(0)
        model = make_model(dtype=torch.float64)
        learner = Updater(model, row, OptimizerConfig(lr=1e-3, max_grad_norm=1e9))
        with torch.no_grad():
            learner.model.value_head.weight.normal_(0, 0.1)
        learner.update(groups)
        return copied(model)

    for row, pulls in ((PPO, True), (APART, False)):
        one, other = (trained(row.changed({"value.coef": coef})) for coef in (0.1, 10.0))
        assert any(not torch.equal(one[name], other[name]) for name in one) == pulls


def test_a_separate_critic_resumes_from_its_state(make_model, groups):
    config = OptimizerConfig(lr=1e-3, critic_lr=1e-2)
    learner = Updater(make_model(), APART, config)
    learner.update(groups)
    resumed = Updater(make_model(), APART, config)
    resumed.model.model.load_state_dict(learner.model.model.state_dict())
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert [resumed.update(groups) for _ in range(2)] == [learner.update(groups) for _ in range(2)]
    with pytest.raises(ValueError, match="the saved learner has a value_trunk, this one differs"):
        Updater(make_model(), PPO, config).load_state_dict(learner.state_dict())


def test_whitened_rewards_keep_their_mean_and_scale_value_targets(make_group):
    """Rewards 0 0 0 1: (r - .25) / .5 + .25 is -.25 three times and 1.75; with V 0, A is to go."""
    batch = Batch.from_groups([make_group([[(2, 4, 1.0)]])])
    zeros = torch.zeros(4, dtype=torch.float64)
    row = PPO.changed({"whiten": False, "advantage.whiten_rewards": True})
    credit = assign_credit(row, batch, zeros)
    expected = torch.tensor([1.0, 1.25, 1.5, 1.75], dtype=torch.float64)
    torch.testing.assert_close(credit.advantages, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(credit.returns, expected, rtol=1e-6, atol=0)
    # Advantages that are whitened leave the targets as they were.
    plain = assign_credit(replace(PPO, whiten=True), batch, zeros)
    assert plain.returns.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"value.critic": "model"},
            r"critic \(model\) must be head without values: advantage is group",
        ),
        ({"value.critic": "own"}, r"critic \(own\) must be one of head, model"),
        (
            {"advantage.whiten_rewards": True},
            r"advantage=group-outcome has no option 'whiten_rewards'",
        ),
    ],
)
def test_options_that_need_values_are_refused_without(changes, message):
    with pytest.raises(ValueError, match=message):
        ALGORITHMS["grpo"].changed(changes)


def test_a_rate_for_no_critic_is_refused(make_model):
    with pytest.raises(
        ValueError, match=r"^optimizer.critic_lr \(0.01\) must be left out: only rows"
    ):
        Updater(make_model(), ALGORITHMS["grpo"], OptimizerConfig(critic_lr=0.01))
