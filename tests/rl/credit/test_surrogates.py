"""Every surrogate: worked numbers of the papers, gradients, and what all share on policy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.algorithms import ALGORITHMS
from rl.credit.losses import diverged, surrogate, token_weights
from rl.credit.plugin import SURROGATES
from rl.credit.ratios import row_means

NAMES = [n for n in SURROGATES.names() if SURROGATES.find(n).__module__ == "rl.credit.surrogates"]
GRPO = ALGORITHMS["grpo"]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def one(row, ratio, advantage, logprob=-1.0):
    """The loss and the gradient of a single token."""
    now = f64([logprob]).requires_grad_()
    made = surrogate(
        row, now, f64([logprob - math.log(ratio)]), f64([advantage]), torch.tensor([0])
    )
    (gradient,) = torch.autograd.grad(made.loss.sum(), now)
    return made.loss.item(), gradient.item(), made.below.item(), made.above.item()


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    row = GRPO.changed(
        {"surrogate": "cispo", "surrogate.clip_low": 1.0, "surrogate.clip_high": 0.28}
    )
    assert one(row, 1.5, 2.0) == pytest.approx((2.56, -2.56, False, True))
    assert one(row, 1.2, -1.0) == pytest.approx((-1.2, 1.2, False, False))
    assert one(row, 0.01, 1.0) == pytest.approx((0.01, -0.01, False, False))
    assert one(row.changed({"surrogate.clip_low": 0.2}), 0.01, 1.0) == pytest.approx(
        (0.8, -0.8, True, False)
    )


def test_sapo_closes_gradually():
    row = GRPO.changed({"surrogate": "sapo"})
    assert one(row, 1.5, 1.0)[0] == pytest.approx(-2.4898373, abs=1e-7)
    # d/dlog r of -(4 / tau) sigmoid(tau (r - 1)) A is -4 A r sigmoid (1 - sigmoid).
    gate = 1 / (1 + math.exp(-1.05 * 0.5))
    loss, gradient, below, above = one(row, 1.5, -2.0)
    assert loss == pytest.approx(8 / 1.05 * gate)
    assert gradient == pytest.approx(8 * 1.5 * gate * (1 - gate))
    assert not below and not above


def test_dppo_stops_where_a_probability_moved_too_far():
    row = GRPO.changed(
        {"surrogate": "dppo-tv", "surrogate.clip_low": 0.2, "surrogate.clip_high": 0.2}
    )
    # pi = e^-1 = .368: from .245 it rose by .123, from .0368 by .331.
    assert one(row, 1.5, 2.0) == pytest.approx((3.0, -3.0, False, False))
    assert one(row, 10.0, 2.0) == (0.0, 0.0, False, True)
    assert one(row, 10.0, -2.0) == pytest.approx((-20.0, 20.0, False, False))
    assert one(row, 0.5, -2.0) == (0.0, 0.0, True, False)
    # A rare token: thirty times as likely as before, and still it hardly moved.
    assert one(row, 30.0, 1.0, logprob=-9.0) == pytest.approx((180.0, -20.0, False, False))


def test_gspo_takes_the_ratio_of_the_sequence():
    row = ALGORITHMS["gspo"]
    assert (row.surrogate.clip_low, row.surrogate.clip_high, row.minibatches) == (3e-4, 4e-4, 4)
    moved = f64([0.001, -0.002, 0.003, 0.0])
    old, rows = f64([-1.0, -2.0, -0.5, -3.0]), torch.zeros(4, dtype=torch.int64)
    for name in ("gspo", "gspo-token"):
        for advantage, loss, slope, clipped in (
            (1.0, -1.0004, 0.0, True),
            (-1.0, 1.000500125, 1.000500125, False),
        ):
            now = (old + moved).requires_grad_()
            made = surrogate(
                row.changed({"surrogate": name}), now, old, torch.full_like(old, advantage), rows
            )
            torch.testing.assert_close(made.loss, f64([loss] * 4), atol=1e-9, rtol=0)
            assert made.above.tolist() == [clipped] * 4 and not made.below.any()
            # By the mean over the sequence both forms have the same gradient.
            (gradient,) = torch.autograd.grad(made.loss.mean(), now)
            torch.testing.assert_close(gradient, f64([slope / 4] * 4), atol=1e-9, rtol=0)


def test_gmpo_bounds_each_ratio_before_the_mean():
    row = GRPO.changed({"surrogate": "gmpo", "surrogate.clip_low": 0.4, "surrogate.clip_high": 0.4})
    moved, rows = f64([0.9, -0.9, 0.1]), torch.zeros(3, dtype=torch.int64)
    zero = torch.zeros(3, dtype=torch.float64)
    for advantage, bounded, below, above in (
        (2.0, [0.4, -0.9, 0.1], [False] * 3, [True, False, False]),
        (-2.0, [0.9, -0.4, 0.1], [False, True, False], [False] * 3),
    ):
        now = moved.clone().requires_grad_()
        made = surrogate(row, now, zero, torch.full_like(zero, advantage), rows)
        mean = math.exp(sum(bounded) / 3)
        torch.testing.assert_close(made.loss, f64([-advantage * mean] * 3))
        assert (made.below.tolist(), made.above.tolist()) == (below, above)
        (gradient,) = torch.autograd.grad(made.loss.mean(), now)
        touched = np.array(below) | np.array(above)
        expected = np.where(touched, 0.0, -advantage * mean / 3)
        torch.testing.assert_close(gradient, torch.from_numpy(expected))


def test_reinforce_is_the_log_probability_times_the_advantage():
    assert one(GRPO.changed({"surrogate": "reinforce"}), 7.0, 3.0) == (3.0, -3.0, False, False)


def test_mirror_descent_pulls_a_whole_sequence_back():
    """Kimi k1.5, equation 3: the gradient's coefficient is (r - mean) - tau log-ratio."""
    row = ALGORITHMS["kimi"].changed({"surrogate.tau": 0.1})
    # Four sequences of two tokens; their log-ratios are .2, -.1, 0 and .05.
    moved = f64([0.15, 0.05, -0.3, 0.2, 0.0, 0.0, 0.01, 0.04])
    rows = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    advantages = f64([0.5, -0.5, 0.5, -0.5])[rows]
    old = f64([-1.0, -2.0] * 4)
    now = (old + moved).requires_grad_()
    made = surrogate(row, now, old, advantages, rows)
    (gradient,) = torch.autograd.grad(made.loss.sum(), now)
    expected = f64([0.48, -0.49, 0.5, -0.505])[rows]
    torch.testing.assert_close(-gradient, expected, atol=1e-12, rtol=0)
    total = (-advantages * now).sum() + 0.05 * (0.04 + 0.01 + 0.0025)
    assert made.loss.sum().item() == pytest.approx(total.item())
    assert not made.below.any() and not made.above.any()


def test_oreal_imitates_right_episodes_and_makes_others_less_likely():
    """What is wrong has its weight of 0.5 whether or not a model weighs the tokens."""
    for row in (ALGORITHMS["oreal"], ALGORITHMS["oreal"].changed({"token_rewards.kind": "none"})):
        assert one(row, 1.5, 2.0) == pytest.approx((2.0, -2.0, False, False))
        assert one(row, 1.5, -2.0) == pytest.approx((1.5, 1.5, False, False))


def test_dro_pulls_each_token_back():
    row = GRPO.changed({"surrogate": "dro", "surrogate.tau": 0.5})
    pull = math.log(1.5)
    loss, gradient, *_ = one(row, 1.5, 2.0)
    assert (loss, gradient) == pytest.approx((2 + 0.25 * pull**2, -2 + 0.5 * pull))


def test_diverged_sequences():
    moved = f64([-0.3, -0.1, -0.3, -0.1, 0.4, -0.9])
    rows, signs = torch.tensor([0, 0, 1, 1, 2, 2]), f64([-1, -1, 1, 1, -1, -1])
    # Mean log(old / now): .2, .2 with a positive advantage, .25.
    assert diverged(moved, signs, rows, 0.19).tolist() == [True, True, False, False, True, True]
    assert diverged(moved, signs, rows, 0.21).tolist() == [False] * 4 + [True, True]


def test_row_means():
    means = row_means(f64([1, 5, 2, 4, 9]), torch.tensor([7, 2, 7, 2, 2]))
    assert means.tolist() == [1.5, 6, 1.5, 6, 6]


def episodes(seed):
    """Tokens of six sequences, with one advantage for each, as from outcomes."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(np.sort(np.append(rng.integers(0, 6, 24), range(6))))
    by_row = torch.from_numpy(rng.normal(size=6))
    logprobs = torch.from_numpy(rng.normal(size=30) - 3)
    old = logprobs + torch.from_numpy(rng.normal(size=30)) * 0.3
    return logprobs, old, by_row[rows], rows


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_all_have_the_gradient_of_reinforce(name):
    logprobs, _, advantages, rows = episodes(1)
    weights = token_weights(rows, "seq-mean-token-mean")
    now = logprobs.requires_grad_()
    row = GRPO.changed({"surrogate": name})
    loss = (surrogate(row, now, logprobs.detach(), advantages, rows).loss * weights).sum()
    (gradient,) = torch.autograd.grad(loss, now)
    torch.testing.assert_close(gradient, -advantages * weights, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), cut=st.integers(0, 6))
def test_cutting_a_step_between_sequences_changes_nothing(name, seed, cut):
    logprobs, old, advantages, rows = episodes(seed)
    row = GRPO.changed({"surrogate": name})
    whole = surrogate(row, logprobs, old, advantages, rows)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(30))
    for part in (order[rows[order] < cut], order[rows[order] >= cut]):
        # Rows are numbered anew in each micro-batch.
        places = rows[part].unique(return_inverse=True)[1]
        made = surrogate(row, logprobs[part], old[part], advantages[part], places)
        torch.testing.assert_close(made.loss, whole.loss[part], atol=1e-10, rtol=1e-10)
        assert (made.below.equal(whole.below[part]), made.above.equal(whole.above[part])) == (
            *(True, True),
        )


@pytest.mark.parametrize(
    "name", ["clip", "reinforce", "sapo", "dro", "mirror-descent", "oreal", "gspo", "gmpo"]
)
def test_gradients_against_finite_differences(name):
    """Of those without a stopped gradient."""
    logprobs, old, advantages, rows = episodes(3)
    row = GRPO.changed({"surrogate": name})
    assert torch.autograd.gradcheck(
        lambda now: surrogate(row, now, old, advantages, rows).loss, logprobs.requires_grad_()
    )


@pytest.mark.parametrize("name", ["cispo", "dppo-tv", "gspo-token"])
def test_stopped_gradients_against_finite_differences(name):
    """The differences are of the loss in which what is stopped stays as it was."""
    logprobs, old, advantages, rows = episodes(3)
    row = GRPO.changed({"surrogate": name, "surrogate.clip_low": 0.1, "surrogate.clip_high": 0.1})
    ratio = (logprobs - old).exp()
    tokens = {i: [j for j in range(30) if rows[j] == rows[i]] for i in range(30)}
    means = f64([(logprobs - old)[tokens[i]].mean() for i in range(30)])
    moved = logprobs.exp() - old.exp()
    stays = (moved <= 0.1) & (advantages > 0) | (moved >= -0.1) & (advantages < 0)

    def frozen(now):
        if name == "cispo":
            return -ratio.clamp(0.9, 1.1) * advantages * now
        if name == "dppo-tv":
            return -ratio * stays * advantages * now
        s = (means + now - logprobs).exp()
        return -torch.minimum(s * advantages, s.clamp(0.9, 1.1) * advantages)

    step = 1e-6
    numeric = (frozen(logprobs + step) - frozen(logprobs - step)) / (2 * step)
    leaf = logprobs.clone().requires_grad_()
    made = surrogate(row, leaf, old, advantages, rows)
    (gradient,) = torch.autograd.grad(made.loss.sum(), leaf)
    torch.testing.assert_close(made.loss, frozen(logprobs), atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, numeric, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_overflows(name):
    row = GRPO.changed({"surrogate": name})
    now = f64([-1e-9, -900.0, -1e-9, -900.0]).requires_grad_()
    old, advantages = f64([-900.0, -1e-9, -900.0, -1e-9]), f64([1, 1, -1, -1])
    made = surrogate(row, now, old, advantages, torch.tensor([0, 1, 2, 3]))
    made.loss.sum().backward()
    assert made.loss.isfinite().all() and now.grad.isfinite().all()
