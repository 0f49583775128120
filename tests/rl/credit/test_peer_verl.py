"""The same tensors through verl's functions and ours, where verl is installed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl.credit.advantages.math import gae, group_advantages, suffix_sums, whiten
from rl.credit.algorithm import Algorithm
from rl.credit.assignment import correction_weights
from rl.credit.losses import kl_penalty, token_weights, value_loss, weighted_sum

core = pytest.importorskip("verl.trainer.ppo.core_algos")
helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
config = pytest.importorskip("verl.workers.config")

ROW = Algorithm(aggregation="token-mean")
LOW, HIGH, TAU = 0.2, 0.28, 0.3
SEQUENCES = {"aggregation": "seq-mean-token-mean"}


def bounded(surrogate, dual_clip=None, **changes):
    """A surrogate with verl's bounds."""
    dual = {} if dual_clip is None else {"surrogate.dual_clip": dual_clip}
    bounds = {"surrogate.clip_low": LOW, "surrogate.clip_high": HIGH}
    return ROW.changed({"surrogate": surrogate, **bounds, **dual, **changes})


def same(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def actor(**changes):
    made = config.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        policy_loss=config.PolicyLossConfig(dro_beta=TAU),
        **changes,
    )
    return made


@pytest.mark.parametrize(
    ("name", "row", "changes"),
    [
        ("vanilla", bounded("clip", 3.0), {}),
        ("vanilla", bounded("clip", 1.1), {"clip_ratio_c": 1.1}),
        ("vanilla", bounded("clip", 3.0, **SEQUENCES), {}),
        ("gspo", bounded("gspo", **SEQUENCES), {}),
        ("gspo", bounded("gspo-token", **SEQUENCES), {}),
        ("sapo", ROW.changed({"surrogate": "sapo", **SEQUENCES}), {}),
        ("geo_mean", bounded("gmpo", **SEQUENCES), {}),
        ("cispo", bounded("cispo"), {}),
        ("dppo_tv", bounded("dppo-tv"), {"clip_ratio_c": 20.0}),
        ("dro", ROW.changed({"surrogate": "dro", "surrogate.tau": TAU}), {}),
    ],
    ids=lambda value: value.surrogate.name if isinstance(value, Algorithm) else "",
)
def test_policy_losses(peer_batch, name, row, changes):
    b = peer_batch
    loss_of = core.get_policy_loss_fn(name)
    theirs = b.theirs(
        lambda logprobs: loss_of(
            old_log_prob=b.old,
            log_prob=logprobs,
            advantages=b.advantages,
            response_mask=b.mask,
            loss_agg_mode=row.aggregation,
            config=actor(**changes),
        )[0]
    )
    for got, expected in zip(b.ours(row), theirs, strict=True):
        same(got, expected)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("compute_grpo_outcome_advantage", {"advantage.std": "unbiased"}),
        ("compute_grpo_vectorized_outcome_advantage", {"advantage.std": "unbiased"}),
        (
            "compute_rloo_outcome_advantage",
            {"advantage.std": "none", "advantage.baseline": "leave-one-out"},
        ),
        (
            "compute_rloo_vectorized_outcome_advantage",
            {"advantage.std": "none", "advantage.baseline": "leave-one-out"},
        ),
        (
            "compute_opo_outcome_advantage",
            {"advantage.std": "none", "advantage.baseline": "length-weighted"},
        ),
        ("compute_reinforce_plus_plus_baseline_outcome_advantage", {"advantage.std": "none"}),
    ],
)
def test_group_advantages(peer_batch, name, choices):
    b = peer_batch
    index = np.asarray(b.groups.tolist())
    theirs, _ = getattr(core, name)(b.rewards.clone(), b.mask, index=index)
    got = (
        group_advantages(b.rewards.sum(1), b.groups, lengths=b.mask.sum(1), **choices)
        .advantages[:, None]
        .expand(b.mask.shape)
    )
    got = whiten(got, b.mask) if "plus_plus" in name else got * b.mask
    same(got, theirs)


def test_dr_grpo_advantages(peer_batch):
    b = peer_batch
    theirs, _ = core.compute_grpo_outcome_advantage(
        b.rewards.clone(),
        b.mask,
        index=np.asarray(b.groups.tolist()),
        norm_adv_by_std_in_grpo=False,
    )
    got = group_advantages(b.rewards.sum(1), b.groups, "none").advantages
    same(got[:, None] * b.mask, theirs)


def test_a_group_of_one_differs(peer_batch):
    """There it is the raw reward, here 0."""
    b = peer_batch
    theirs, _ = core.compute_grpo_outcome_advantage(
        b.rewards[:1].clone(), b.mask[:1], index=np.asarray([0])
    )
    assert theirs[0, 0].item() == pytest.approx(1.3, abs=1e-5)
    assert group_advantages(b.rewards[:1].sum(1), b.groups[:1]).advantages.tolist() == [0]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (1.0, 0.0)])
def test_gae(peer_batch, gamma, lam):
    b = peer_batch
    advantages, returns = core.compute_gae_advantage_return(
        b.rewards, b.values, b.mask, gamma=gamma, lam=lam
    )
    got, ours = gae(b.rewards, b.values, b.mask, gamma, lam)
    same(whiten(got, b.mask), advantages * b.mask)
    same(ours, returns * b.mask)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_rewards_to_go(peer_batch, gamma):
    b = peer_batch
    advantages, returns = core.compute_reinforce_plus_plus_outcome_advantage(
        b.rewards, b.mask, config=SimpleNamespace(gamma=gamma)
    )
    got = suffix_sums(b.rewards, b.mask, gamma)
    same(got, returns)
    same(whiten(got, b.mask), advantages)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_kl_estimators(peer_batch, estimator):
    b = peer_batch
    mine, other = (b.logprobs.clone().requires_grad_() for _ in range(2))
    got = kl_penalty(mine, b.ref, estimator)
    expected = core.kl_penalty(other, b.ref, estimator)
    same(got, expected)
    same(torch.autograd.grad(got.sum(), mine)[0], torch.autograd.grad(expected.sum(), other)[0])


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_aggregations(peer_batch, aggregation):
    b = peer_batch
    expected = core.agg_loss(b.logprobs, b.mask, aggregation, loss_scale_factor=17)
    weights = token_weights(b.rows, aggregation, 17)
    same(weighted_sum(b.logprobs[b.chosen], weights), expected)


def test_value_losses(peer_batch):
    b = peer_batch
    returns = b.values + b.ref
    expected, _ = core.compute_value_loss(b.values, returns, b.old, b.mask, cliprange_value=0.2)
    got = value_loss(b.values, b.old, returns, 0.2)[b.chosen].mean()
    same(got, expected)


@pytest.mark.parametrize(
    ("correction", "level", "threshold"),
    [("tis", "token", 1.5), ("icepop", "token", "0.5_1.5"), ("seq-tis", "sequence", 1.5)],
)
def test_corrections(peer_batch, correction, level, threshold):
    b = peer_batch
    expected, _ = helper.compute_rollout_correction_weights(
        b.logprobs - b.old, b.mask, rollout_is=level, rollout_is_threshold=threshold
    )
    row = ROW.changed(
        {"correction.kind": correction, "correction.low": 0.5, "correction.high": 1.5}
    )
    got, _ = correction_weights(row, b.logprobs[b.chosen], b.old[b.chosen], b.rows)
    same(b.spread(got), expected * b.mask)
