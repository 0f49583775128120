"""The objective of a whole row of choices, against the same in plain NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.algorithms import ALGORITHMS
from rl.credit.losses import (
    FixedTerms,
    TokenScores,
    imitation_objective,
    policy_objective,
    token_weights,
)

PPO = ALGORITHMS["ppo"].changed(
    {
        "surrogate.clip_high": 0.28,
        "surrogate.dual_clip": 3.0,
        "kl.coef": 0.3,
        "kl.place": "loss",
        "kl.estimator": "k3",
        "entropy_coef": 0.05,
        "value.coef": 0.7,
    }
)
ROWS = torch.empty(0, dtype=torch.int64)
"""Only the surrogates of sequences read them; tests/rl/credit/test_surrogates.py does."""
KEYS = ("logprobs", "entropy", "values", "advantages", "old", "ref", "old_values", "returns")


def numbers(seed, count=12):
    generator = np.random.default_rng(seed)
    return {key: generator.normal(size=count) for key in KEYS}


def numpy_objective(row, x, weights, value_weight):
    ratio = np.exp(x["logprobs"] - x["old"])
    a = x["advantages"]
    surrogate = np.maximum(
        -a * ratio, -a * np.clip(ratio, 1 - row.surrogate.clip_low, 1 + row.surrogate.clip_high)
    )
    if row.surrogate.dual_clip is not None:
        surrogate = np.where(a < 0, np.minimum(surrogate, -row.surrogate.dual_clip * a), surrogate)
    d = x["logprobs"] - x["ref"]
    kl = np.exp(-d) - 1 + d
    clipped = np.clip(
        x["values"], x["old_values"] - row.value.clip, x["old_values"] + row.value.clip
    )
    value = 0.5 * np.maximum((x["values"] - x["returns"]) ** 2, (clipped - x["returns"]) ** 2)
    policy = surrogate + row.kl.coef * kl - row.entropy_coef * x["entropy"]
    sums = {
        "entropy": x["entropy"].sum(),
        "kl": kl.sum(),
        "value_loss": value.sum(),
        "clip_ratio/low_mean": ((ratio < 1 - row.surrogate.clip_low) & (a < 0)).sum(),
        "clip_ratio/high_mean": ((ratio > 1 + row.surrogate.clip_high) & (a > 0)).sum(),
    }
    sums["clip_ratio/region_mean"] = sums["clip_ratio/low_mean"] + sums["clip_ratio/high_mean"]
    return (weights * policy).sum() + row.value.coef * value_weight * value.sum(), sums


def tensors(x):
    t = {key: torch.from_numpy(value) for key, value in x.items()}
    scores = TokenScores(t["logprobs"], t["entropy"], t["values"])
    fixed = FixedTerms(t["advantages"], t["old"], t["ref"], t["old_values"], t["returns"])
    return scores, fixed


@pytest.mark.parametrize(
    "row", [PPO, PPO.changed({"surrogate.dual_clip": None, "surrogate.clip_high": 0.2})]
)
def test_every_term_has_its_coefficient(row):
    x = numbers(4, count=400)
    weights = np.random.default_rng(1).random(400)
    loss, sums = numpy_objective(row, x, weights, 1 / 400)
    terms = policy_objective(row, *tensors(x), torch.from_numpy(weights), 1 / 400, ROWS)
    assert terms.loss.item() == pytest.approx(loss, rel=1e-12)
    assert {key: value.item() for key, value in terms.sums.items()} == pytest.approx(sums)
    assert min(sums["clip_ratio/low_mean"], sums["clip_ratio/high_mean"]) > 50


def test_a_divergence_times_the_ratio_has_its_own_gradient():
    """Off policy, E_old[r k] is E_pi[k]: k1's gradient, 0 on average without the ratio, is right.

    Three tokens, weighted by the probabilities that they were sampled with.
    """
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    old, ref = (torch.tensor(x).double().log() for x in ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6]))
    now = logits.log_softmax(0)
    (truth,) = torch.autograd.grad((now.exp() * (now - ref)).sum(), logits, retain_graph=True)
    zero = torch.zeros(3, dtype=torch.float64)
    for estimator in ("k1", "k2", "k3"):
        row = ALGORITHMS["grpo"].changed(
            {"kl.coef": 1.0, "kl.estimator": estimator, "kl.ratio": True}
        )
        fixed = FixedTerms(zero, old, ref)
        loss = policy_objective(row, TokenScores(now, zero), fixed, old.exp(), 1.0, ROWS).loss
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        if estimator != "k2":
            torch.testing.assert_close(gradient, truth, atol=1e-12, rtol=0)
        else:
            assert (gradient - truth).norm() > 0.01


def test_a_diverged_sequence_has_no_gradient():
    now = torch.tensor([-2.0, -2.0, -1.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    row = ALGORITHMS["grpo"].changed({"correction.drop_divergence": 0.5, "surrogate": "reinforce"})
    scores = TokenScores(now, torch.zeros(3, dtype=torch.float64))
    fixed = FixedTerms(-torch.ones(3, dtype=torch.float64), old)
    weights, rows = torch.ones(3, dtype=torch.float64), torch.tensor([0, 0, 1])
    terms = policy_objective(row, scores, fixed, weights, 1 / 3, rows)
    terms.loss.backward()
    assert now.grad.tolist() == [0, 0, 1]
    assert terms.sums["clip_ratio/diverged_mean"].item() == 2


def test_the_dual_clip_bounds_tokens_that_the_sampler_found_unlikely():
    """The recorded probability was e^-20 of the policy's: the loss would be 4.9e8, and is 3."""
    now = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    scores = TokenScores(now, torch.zeros(1, dtype=torch.float64))
    fixed = FixedTerms(-torch.ones(1, dtype=torch.float64), now.detach() - 20)
    one = torch.ones(1, dtype=torch.float64)
    row = replace(ALGORITHMS["grpo"], old_logprobs="sampling")
    rows = torch.tensor([0])
    for surrogate in ("clip", "gspo", "gspo-token"):
        terms = policy_objective(
            row.changed({"surrogate": surrogate}), scores, fixed, one, 1.0, rows
        )
        assert terms.loss.item() == 3.0
    wide = policy_objective(
        row.changed({"surrogate.dual_clip": 0.0}), scores, fixed, one, 1.0, rows
    )
    assert wide.loss.item() == pytest.approx(4.85e8, rel=1e-3)
    within = policy_objective(ALGORITHMS["grpo"], scores, fixed, one, 1.0, rows)
    assert within.loss.item() == pytest.approx(4.85e8, rel=1e-3), "around pi_old there is none"


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_parts_add_up_to_the_step(seed, cuts):
    x = numbers(seed)
    scores, fixed = tensors(x)
    weights = token_weights(torch.arange(12) // 5, "seq-mean-token-mean")
    whole = policy_objective(PPO, scores, fixed, weights, 1 / 12, ROWS)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(12))
    loss, entropy = 0.0, 0.0
    for index in order.tensor_split(sorted(cuts)):
        part = TokenScores(scores.logprobs[index], scores.entropy[index], scores.values[index])
        terms = policy_objective(PPO, part, fixed.at(index), weights[index], 1 / 12, ROWS)
        loss, entropy = loss + terms.loss, entropy + terms.sums["entropy"]
    torch.testing.assert_close(loss, whole.loss, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(entropy, whole.sums["entropy"], atol=1e-10, rtol=1e-10)


def test_gradients_against_finite_differences():
    scores, fixed = tensors(numbers(0))
    leaves = [x.requires_grad_() for x in (scores.logprobs, scores.entropy, scores.values)]
    weights = torch.linspace(0.1, 1.2, 12, dtype=torch.float64)

    def loss(logprobs, entropy, values):
        now = TokenScores(logprobs, entropy, values)
        return policy_objective(PPO, now, fixed, weights, 1 / 12, ROWS).loss

    assert torch.autograd.gradcheck(loss, leaves)


def test_without_old_logprobs_the_ratio_is_one_and_has_a_gradient():
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    scores = TokenScores(logprobs, torch.zeros(2, dtype=torch.float64))
    fixed = FixedTerms(torch.tensor([3.0, -5.0], dtype=torch.float64))
    weights = torch.tensor([0.5, 0.25], dtype=torch.float64)
    terms = policy_objective(ALGORITHMS["grpo"], scores, fixed, weights, 0.5, ROWS)
    assert terms.loss.item() == pytest.approx(-1.5 + 1.25)
    terms.loss.backward()
    assert logprobs.grad.tolist() == [-1.5, 1.25]
    assert set(terms.sums) == {
        "entropy",
        "clip_ratio/low_mean",
        "clip_ratio/high_mean",
        "clip_ratio/region_mean",
    }


def test_corrections_weight_only_the_surrogate():
    scores, fixed = tensors(numbers(2))
    weights = torch.full((12,), 0.25, dtype=torch.float64)
    whole = policy_objective(PPO, scores, fixed, weights, 1 / 12, ROWS).loss
    other, plain = PPO.changed({"kl.coef": 0.0, "entropy_coef": 0.0}), replace(scores, values=None)
    alone = policy_objective(other, plain, fixed, weights, 1 / 12, ROWS).loss
    halved = replace(fixed, corrections=torch.full((12,), 0.5, dtype=torch.float64))
    corrected = policy_objective(PPO, scores, halved, weights, 1 / 12, ROWS).loss
    torch.testing.assert_close(corrected, whole - alone / 2)
    assert halved.at(torch.tensor([3, 4])).corrections.tolist() == [0.5, 0.5]


def test_imitation_is_cross_entropy():
    scores = TokenScores(torch.tensor([-1.0, -3.0]), torch.tensor([0.5, 0.25]))
    terms = imitation_objective(scores, torch.tensor([0.5, 0.5]))
    assert terms.loss.item() == 2.0
    assert terms.sums["entropy"].item() == 0.75
