import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.losses import (
    adapted_kl_coef,
    kl_penalty,
    token_weights,
    value_loss,
    weighted_sum,
)
from rl.credit.ratios import clip_regions, clipped_surrogate, log_ratio

AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "symmetric"),
    [
        (1.5, 1, 1.28, 1.2),
        (0.5, 1, 0.5, 0.5),
        (1.5, -1, -1.5, -1.5),
        (0.5, -1, -0.8, -0.8),
        (1.25, 1, 1.25, 1.2),
    ],
)
def test_clipped_surrogate(ratio, advantage, objective, symmetric):
    higher = clipped_surrogate(f64([ratio]), f64([advantage]), 0.2, 0.28)
    plain = clipped_surrogate(f64([ratio]), f64([advantage]), 0.2, 0.2)
    assert -higher.item() == pytest.approx(objective, abs=1e-12)
    assert -plain.item() == pytest.approx(symmetric, abs=1e-12)


def test_dual_clip_bounds_negative_advantages_only():
    ratio, advantages = f64([5, 5, 2, 0.1]), f64([-1, 1, -2, -1])
    plain = clipped_surrogate(ratio, advantages, 0.2, 0.2)
    dual = clipped_surrogate(ratio, advantages, 0.2, 0.2, dual_clip=3.0)
    torch.testing.assert_close(plain, f64([5, -1.2, 4, 0.8]))
    torch.testing.assert_close(dual, f64([3, -1.2, 4, 0.8]))


def test_clipping_regions_stop_the_gradient_where_they_say():
    ratio = f64([0.5, 0.5, 1.0, 1.0, 1.5, 1.5]).requires_grad_()
    advantages = f64([-1, 1, -1, 1, -1, 1])
    low, high = clip_regions(ratio.detach(), advantages, 0.2, 0.28)
    assert low.tolist() == [True, False, False, False, False, False]
    assert high.tolist() == [False, False, False, False, False, True]
    clipped_surrogate(ratio, advantages, 0.2, 0.28).sum().backward()
    expected = torch.where(low | high, 0.0, -advantages)
    torch.testing.assert_close(ratio.grad, expected)


def test_clip_higher_in_probabilities():
    """DAPO section 3.1: at 0.2 a probability of .01 may grow to .012, one of .9 to 1.08."""
    for old, limit in ((0.01, 0.012), (0.9, 1.08)):
        for new, clipped in ((limit * 0.999, False), (limit * 1.001, True)):
            _, high = clip_regions(f64([new / old]), f64([1.0]), 0.2, 0.2)
            assert high.item() is clipped


@pytest.mark.parametrize(
    ("p", "ref", "k1", "k2", "k3"),
    [
        (0.5, 0.4, 0.2231436, 0.0248965, 0.0231436),
        (0.4, 0.5, -0.2231436, 0.0248965, 0.0268564),
    ],
)
def test_kl_estimators(p, ref, k1, k2, k3):
    logprobs, ref_logprobs = f64([math.log(p)]), f64([math.log(ref)])
    for estimator, expected in (("k1", k1), ("k2", k2), ("k3", k3), ("k3+", k3)):
        value = kl_penalty(logprobs, ref_logprobs, estimator).item()
        assert value == pytest.approx(expected, abs=6e-8)


@pytest.mark.parametrize(
    ("kl", "expected"), [(12, 0.201024), (3, 0.198976), (6.3, 0.200256), (6, 0.2), (0, 0.198976)]
)
def test_the_weight_of_the_divergence_follows_its_target(kl, expected):
    """lm-human-preferences: 0.2, a target of 6, 256 episodes, a horizon of 10000."""
    assert adapted_kl_coef(0.2, kl, 6.0, 256, 10_000) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("horizon", [1, 50, 256])
def test_one_update_moves_the_weight_by_a_fifth_at_most(horizon):
    """By the bare formula a horizon of 50 gives 0.2 (1 - 0.2 * 256 / 50) = -0.0048."""
    assert adapted_kl_coef(0.2, 0.0, 6.0, 256, horizon) == pytest.approx(0.16)
    assert adapted_kl_coef(0.2, 60.0, 6.0, 256, horizon) == pytest.approx(0.24)


def exact_gradient(estimator):
    """Expected gradient of an estimator as a loss, and those of KL(p||q) and KL(q||p)."""
    logits = f64([0.3, -1.0, 0.7]).requires_grad_()
    reference = f64([-0.2, 0.4, 0.1]).log_softmax(0)
    logprobs = logits.log_softmax(0)
    p, q = logprobs.exp().detach(), reference.exp()
    (estimated,) = torch.autograd.grad(
        (p * kl_penalty(logprobs, reference, estimator)).sum(), logits, retain_graph=True
    )
    forward = (logprobs.exp() * (logprobs - reference)).sum()
    (kl,) = torch.autograd.grad(forward, logits, retain_graph=True)
    (reverse,) = torch.autograd.grad((q * (reference - logprobs)).sum(), logits)
    return estimated, kl, reverse


def test_expected_gradients_of_kl_estimators():
    estimated, _, _ = exact_gradient("k1")
    torch.testing.assert_close(estimated, torch.zeros(3, dtype=torch.float64))
    for estimator in ("k2", "k3+"):
        estimated, kl, _ = exact_gradient(estimator)
        torch.testing.assert_close(estimated, kl)
    estimated, _, reverse = exact_gradient("k3")
    torch.testing.assert_close(estimated, reverse)


@pytest.mark.parametrize(
    ("value", "old", "target", "expected"),
    [(0.9, 0.5, 1, 0.045), (0.6, 0.5, 1, 0.08), (0.1, 0.5, 0, 0.045)],
)
def test_value_loss(value, old, target, expected):
    loss = value_loss(f64([value]), f64([old]), f64([target]), clip=0.2)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    free = value_loss(f64([value]), f64([old]), f64([target]), clip=None)
    assert free.item() == pytest.approx(0.5 * (value - target) ** 2, abs=1e-12)


def test_value_clip_stops_the_gradient_beyond_it():
    values = f64([0.9, 0.6]).requires_grad_()
    value_loss(values, f64([0.5, 0.5]), f64([1, 1]), clip=0.2).sum().backward()
    torch.testing.assert_close(values.grad, f64([0, -0.4]))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 10 / 6),
        ("seq-mean-token-mean", 1.5),
        ("prompt-mean", 1.5),
        ("seq-mean-token-sum-norm", 0.625),
    ],
)
def test_aggregations(aggregation, expected):
    weights = token_weights(torch.tensor([3, 3, 8, 8, 8, 8]), aggregation, max_tokens=8)
    loss = weighted_sum(f64([1, 1, 2, 2, 2, 2]), weights)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_missing_constant_is_requested():
    with pytest.raises(ValueError, match="max_tokens"):
        token_weights(torch.tensor([0]), "seq-mean-token-sum-norm")


def test_log_ratios_stay_finite():
    ratio = log_ratio(f64([0, -1000, 3]), f64([-1000, 0, 1])).exp()
    torch.testing.assert_close(ratio, f64([math.exp(20), math.exp(-20), math.exp(2)]))


@settings(deadline=None, max_examples=60)
@given(
    aggregation=st.sampled_from(AGGREGATIONS),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    seed=st.integers(0, 2**31),
    parts=st.integers(1, 6),
)
def test_a_step_is_the_sum_of_its_parts_in_any_order(aggregation, lengths, seed, parts):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    shuffled = torch.randperm(len(ids), generator=generator)
    ids = ids[shuffled]
    numbers = torch.randn(3, len(ids), generator=generator, dtype=torch.float64)
    logprobs, old, advantages = (x[shuffled] for x in numbers)

    def gradient(pieces):
        leaf = logprobs.clone().requires_grad_()
        weights = token_weights(ids, aggregation, max_tokens=9)
        losses = []
        for piece in pieces:
            ratio = log_ratio(leaf[piece], old[piece]).exp()
            per_token = clipped_surrogate(ratio, advantages[piece], 0.2, 0.28, 3.0)
            loss = weighted_sum(per_token, weights[piece])
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum(), leaf.grad

    whole = gradient([torch.arange(len(ids))])
    order = torch.randperm(len(ids), generator=generator)
    cut = gradient(list(order.tensor_split(min(parts, len(ids)))))
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), estimator=st.sampled_from(["k1", "k2", "k3"]))
def test_gradients_against_finite_differences(seed, estimator):
    generator = torch.Generator().manual_seed(seed)
    logprobs, old, advantages, values, returns = torch.randn(
        5, 6, generator=generator, dtype=torch.float64
    )
    # Kinks (a ratio or a value at its clip) have no derivative: keep a distance from them.
    ratio = (logprobs - old).exp()
    for bound in (0.8, 1.28):
        ratio = torch.where((ratio - bound).abs() < 1e-3, ratio + 0.01, ratio)
    logprobs = (old + ratio.log()).requires_grad_()
    values.requires_grad_()

    def loss(logprobs, values):
        ratio = log_ratio(logprobs, old).exp()
        surrogate = clipped_surrogate(ratio, advantages, 0.2, 0.28)
        return (
            surrogate
            + 0.1 * kl_penalty(logprobs, old, estimator)
            + value_loss(values, old, returns, clip=None)
        )

    assert torch.autograd.gradcheck(loss, (logprobs, values))
