"""Expected gradients of our estimators, exactly: over every group that can be drawn.

The truth is the derivative of the expected return of a table of logits. Where an estimator is
biased, its bias is derived here in closed form.
"""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.estimators.tabular import (
    ANSWERS,
    BANDIT,
    CHAIN,
    EVEN,
    Setting,
    World,
    all_groups,
    drawn,
)
from benchmarks.estimators.updates import Updates, expected_gradient, gradients
from rl.credit.algorithms import ALGORITHMS

SUM = {"aggregation": "seq-mean-token-sum-norm", "max_tokens": 1}
"""Nothing but the number of episodes divides."""
RLOO = ALGORITHMS["rloo"].changed(SUM)
GROUP_MEAN = RLOO.changed({"advantage.baseline": "mean"})
TO_GO = replace(ALGORITHMS["reinforce-pp"], whiten=False, **SUM)
GAE = ALGORITHMS["ppo"].changed({"whiten": False, **SUM})
TURN_GAE, BILEVEL = (
    ALGORITHMS[name].changed({"whiten": False, "advantage.gamma_turn": 1.0, **SUM})
    for name in ("turn-ppo", "bilevel-ppo")
)
WORLDS = pytest.mark.parametrize(
    "world", [BANDIT, ANSWERS, CHAIN, EVEN], ids=["bandit", "answers", "chain", "even"]
)
TOLERANCE = {"atol": 1e-13, "rtol": 1e-10}


def same(got, expected):
    torch.testing.assert_close(got, expected, **TOLERANCE)


def truth(setting):
    return setting.world.gradient(setting.logits)


def expected_slope(setting, per_token):
    """``sum_c visits(c) gradient of per_token(table)[c]``: the visits are held fixed. [C, V]."""
    at = setting.logits.clone().requires_grad_()
    value = setting.world.visits(setting.logits) @ per_token(at.log_softmax(-1))
    (slope,) = torch.autograd.grad(value, at)
    return slope


def test_the_worlds_figures_by_hand():
    setting = Setting(CHAIN, torch.zeros(CHAIN.num_contexts, 2, dtype=torch.float64), None)
    values = CHAIN.values(setting.logits)
    # Fair coins: end .5, left .25, right after "a" (.5 + .5) / 2, right .15, start after "b".
    at = {place: values[i].item() for place, i in CHAIN.contexts.items()}
    assert at["end", ""] == pytest.approx(0.5) and at["left", ""] == pytest.approx(0.25)
    assert at["right", "a"] == pytest.approx(0.5) and at["right", ""] == pytest.approx(0.15)
    assert at["start", "b"] == pytest.approx((0.25 + 0.3) / 2)
    assert at["start", ""] == pytest.approx((0.25 + 0.275) / 2)
    gradient = truth(setting)[CHAIN.contexts["start", ""]]
    # p (1 - p) times the difference of what the two tokens lead to.
    same(gradient, torch.tensor([0.25, -0.25], dtype=torch.float64) * (0.25 - 0.275))


@WORLDS
@pytest.mark.parametrize("size", [2, 3])
def test_the_mean_of_the_others_is_unbiased(world, size):
    setting = Setting.on_policy(world)
    same(expected_gradient(setting, RLOO, size), truth(setting))


@WORLDS
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("advantage", ["group-outcome", "batch-outcome"])
def test_a_mean_that_includes_the_episode_shrinks_the_gradient(world, size, advantage):
    setting = Setting.on_policy(world)
    row = GROUP_MEAN.changed({"advantage": advantage, "advantage.std": "none"})
    same(expected_gradient(setting, row, size), (size - 1) / size * truth(setting))


def test_dr_grpo_has_its_constant():
    setting = Setting.on_policy(CHAIN)
    got = expected_gradient(setting, ALGORITHMS["dr-grpo"], 3)
    same(got * 3000, 2 / 3 * truth(setting))


@pytest.mark.parametrize(
    "surrogate", ["clip", "reinforce", "cispo", "sapo", "dppo-tv", "dro", "mirror-descent"]
)
def test_on_policy_every_surrogate_of_tokens_is_unbiased(surrogate):
    setting = Setting.on_policy(CHAIN)
    row = RLOO.changed({"surrogate": surrogate})
    same(expected_gradient(setting, row, 2), truth(setting))


@pytest.mark.parametrize("surrogate", ["gspo", "gspo-token", "gmpo"])
def test_on_policy_every_surrogate_of_sequences_is_that_of_their_mean_token(surrogate):
    row = RLOO.changed({"surrogate": surrogate, "aggregation": "seq-mean-token-mean"})
    even, uneven = Setting.on_policy(EVEN), Setting.on_policy(ANSWERS)
    same(expected_gradient(even, row, 2), truth(even) / 4)
    same(expected_gradient(uneven, row, 2), length_biased(uneven))


@WORLDS
def test_rewards_to_go_are_unbiased(world):
    setting = Setting.on_policy(world)
    same(expected_gradient(setting, TO_GO, 1), truth(setting))


@WORLDS
@pytest.mark.parametrize("row", [GAE, TURN_GAE], ids=["token", "turn"])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_with_exact_values_is_unbiased(world, row, lam):
    setting = Setting.on_policy(world)
    same(expected_gradient(setting, row.changed({"advantage.lam": lam}), 1), truth(setting))


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_bilevel_gae_with_exact_values_is_unbiased_while_lengths_of_turns_are_given(lam):
    """Below lambda 1 it reads values at last tokens. Where the policy itself ends its turns, that
    a token is the last reveals what was sampled there, and the value before it is not the mean."""
    row = BILEVEL.changed({"advantage.lam": lam})
    even, uneven = Setting.on_policy(EVEN), Setting.on_policy(CHAIN)
    same(expected_gradient(even, row, 1), truth(even))
    error = expected_gradient(uneven, row, 1) - truth(uneven)
    assert (error.norm() < 1e-12) == (lam == 1)


def test_length_adaptive_gae_with_exact_values_is_unbiased_while_lengths_are_equal():
    """Where they are not, lambda depends on what is still to be sampled."""
    row = GAE.changed({"advantage.lam_alpha": 0.5})
    even, uneven = Setting.on_policy(EVEN), Setting.on_policy(CHAIN)
    same(expected_gradient(even, row, 1), truth(even))
    assert (expected_gradient(uneven, row, 1) - truth(uneven)).norm() > 0.01 * truth(uneven).norm()


@WORLDS
@pytest.mark.parametrize("row", [GAE, TURN_GAE, BILEVEL], ids=["token", "turn", "bilevel"])
def test_gae_with_wrong_values_is_unbiased_only_at_lambda_1(world, row):
    setting = Setting.on_policy(world)
    wrong = drawn(world, 7, 1.0)[:, 0]
    same(expected_gradient(setting, row.changed({"advantage.lam": 1.0}), 1, wrong), truth(setting))
    if len(world.episodes[0].turns) > 1:
        biased = expected_gradient(setting, row.changed({"advantage.lam": 0.5}), 1, wrong)
        assert (biased - truth(setting)).norm() > 0.05 * truth(setting).norm()


@pytest.mark.parametrize(
    ("aggregation", "scale"),
    [
        ("token-mean", 1 / 4),
        ("seq-mean-token-mean", 1 / 4),
        ("prompt-mean", 1 / 4),
        ("seq-mean-token-sum-norm", 1 / 9),
    ],
)
def test_with_equal_lengths_every_aggregation_is_a_constant(aggregation, scale):
    setting = Setting.on_policy(EVEN)
    row = replace(RLOO, aggregation=aggregation, max_tokens=9)
    same(expected_gradient(setting, row, 3), scale * truth(setting))


def length_biased(setting):
    """The gradient of E[R / L] minus E[R] times that of E[1 / L]: what dividing by L makes."""
    world = setting.world
    shares = 1 / world.lengths
    mean = world.expectation(setting.logits, world.returns)
    return world.gradient(setting.logits, world.returns * shares) - mean * world.gradient(
        setting.logits, shares
    )


@pytest.mark.parametrize("world", [ANSWERS, CHAIN], ids=["answers", "chain"])
def test_dividing_by_each_length_follows_another_objective(world):
    setting = Setting.on_policy(world)
    row = replace(RLOO, aggregation="seq-mean-token-mean")
    got = expected_gradient(setting, row, 3)
    same(got, length_biased(setting))
    cosine = (got * truth(setting)).sum() / got.norm() / truth(setting).norm()
    assert cosine < 0.99


@pytest.mark.parametrize("aggregation", ["token-mean", "prompt-mean"])
def test_dividing_by_the_tokens_of_the_step_is_biased(aggregation):
    setting = Setting.on_policy(ANSWERS)
    got = expected_gradient(setting, replace(RLOO, aggregation=aggregation), 2)
    scale = (got * truth(setting)).sum() / truth(setting).square().sum()
    assert (got / scale - truth(setting)).norm() > 0.02 * truth(setting).norm()


@pytest.mark.parametrize("std", ["unbiased", "biased"])
@pytest.mark.parametrize("size", [2, 5])
def test_the_deviation_favours_tasks_of_extreme_difficulty(std, size):
    """Of right and wrong answers, k right among n: summed over the binomial of k."""
    coin = World({"ask": {"a": (None, 1.0), "b": (None, 0.0)}}, ["ask"])
    for p in (0.05, 0.5, 0.9):
        logits = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
        scale = 0.0
        for k in range(1, size):
            chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
            degrees = size - 1 if std == "unbiased" else size
            divisor = math.sqrt(k * (size - k) / size / degrees) + 1e-6
            # d log p is 1/p for the right ones and -1/(1 - p) for the wrong ones, times dp.
            right, wrong = (1 - k / size) / divisor / p, (k / size) / divisor / (1 - p)
            scale += chance * (k * right + (size - k) * wrong) / size
        setting = Setting(coin, logits, logits)
        same(
            expected_gradient(setting, GROUP_MEAN.changed({"advantage.std": std}), size),
            scale * truth(setting),
        )


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_mean_as_divisor_nears_the_gradient_of_the_log(p, size):
    """k right among n: the right ones have (n - k) / k, the wrong ones -1. Of the binomial that is
    (1 - (1 - p)^(n - 1)) / p times dp, the first n - 1 terms of d log p."""
    coin = World({"ask": {"a": (None, 1.0), "b": (None, 0.0)}}, ["ask"])
    logits = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
    setting = Setting(coin, logits, logits)
    got = expected_gradient(setting, GROUP_MEAN.changed({"advantage.std": "mean"}), size)
    expected = (1 - (1 - p) ** (size - 1)) / p * truth(setting)
    torch.testing.assert_close(got, expected, atol=0, rtol=2e-5)


def test_whitening_of_one_group_of_one_token_is_its_deviation():
    setting = Setting.on_policy(BANDIT)
    whitened = expected_gradient(setting, replace(GROUP_MEAN, whiten=True), 3)
    divided = expected_gradient(setting, GROUP_MEAN.changed({"advantage.std": "unbiased"}), 3)
    torch.testing.assert_close(whitened, divided, atol=1e-5, rtol=0)


def test_whitening_biases_where_lengths_differ():
    """What is subtracted then is a mean weighted by lengths, of what a token can change."""
    setting = Setting.on_policy(ANSWERS)
    got = expected_gradient(setting, replace(TO_GO, whiten=True), 3)
    scale = (got * truth(setting)).sum() / truth(setting).square().sum()
    assert (got / scale - truth(setting)).norm() > 0.02 * truth(setting).norm()


def test_a_baseline_weighted_by_lengths():
    """Of equal lengths it is the group's mean; of others it is biased."""
    row = RLOO.changed({"advantage.baseline": "length-weighted"})
    even, uneven = Setting.on_policy(EVEN), Setting.on_policy(ANSWERS)
    same(expected_gradient(even, row, 3), 2 / 3 * truth(even))
    error = expected_gradient(uneven, row, 3) - 2 / 3 * truth(uneven)
    assert error.norm() > 0.02 * truth(uneven).norm()


def test_process_rewards_shrink_each_turn_by_its_own_share():
    """The mean of all turns of n episodes of T holds T - k of those that turn k can change."""
    setting = Setting.on_policy(EVEN)
    row = GROUP_MEAN.changed({"advantage": "group-process", "advantage.std": "none"})
    changed = [2 if state == "one" else 1 for state, _ in EVEN.contexts]
    factors = 1 - torch.tensor(changed, dtype=torch.float64) / (3 * 2)
    same(expected_gradient(setting, row, 3), factors[:, None] * truth(setting))


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("size", [2, 3])
def test_turns_of_rare_states_are_shrunk_in_gigpo(weight, size):
    """A state that q of the episodes visit has k visitors, 1 + Bin(n - 1, q): the mean of
    (k - 1) / k is 1 - (1 - (1 - q)^n) / (n q)."""
    setting = Setting.on_policy(CHAIN)
    row = ALGORITHMS["gigpo"].changed(
        {"advantage.gamma_turn": 1.0, "advantage.turn_weight": weight, **SUM}
    )
    visits = CHAIN.visits(setting.logits)
    q = torch.stack([visits[CHAIN.contexts[state, ""]] for state, _ in CHAIN.contexts])
    factors = (size - 1) / size + weight * (1 - (1 - (1 - q) ** size) / (size * q))
    same(expected_gradient(setting, row, size), factors[:, None] * truth(setting))


def off_policy(world):
    setting = Setting.on_policy(world)
    return setting.sampled_by(setting.logits + drawn(world, 3, 0.5))


@WORLDS
def test_sequences_weighted_by_their_whole_ratio_are_unbiased(world):
    setting = off_policy(world)
    for correction in ("seq-tis", "seq-icepop"):
        row = RLOO.changed(
            {"correction.kind": correction, "correction.low": 0.0, "correction.high": 1e6}
        )
        same(expected_gradient(setting, row, 2), truth(setting))
    uncorrected = expected_gradient(setting, RLOO, 2)
    assert (uncorrected - truth(setting)).norm() > 0.05 * truth(setting).norm()


@pytest.mark.parametrize(
    "changes",
    [
        {"correction.kind": "tis", "correction.high": 1e6},
        {"correction.kind": "icepop", "correction.low": 0.0, "correction.high": 1e6},
        {
            "surrogate": "clip",
            "old_logprobs": "sampling",
            "surrogate.clip_low": 1.0,
            "surrogate.clip_high": 1e6,
            "surrogate.dual_clip": 0.0,
        },
        {
            "surrogate": "cispo",
            "old_logprobs": "sampling",
            "surrogate.clip_low": 1.0,
            "surrogate.clip_high": 1e6,
        },
    ],
    ids=lambda changes: changes.get("correction.kind", changes.get("surrogate")),
)
def test_ratios_of_tokens_are_unbiased_only_for_one_token(changes):
    row = RLOO.changed(changes)
    bandit, chain = off_policy(BANDIT), off_policy(CHAIN)
    same(expected_gradient(bandit, row, 2), truth(bandit))
    # What came before a token, and what comes after, are the sampler's.
    assert (expected_gradient(chain, row, 2) - truth(chain)).norm() > 0.05 * truth(chain).norm()


@pytest.mark.parametrize(
    "correction",
    [
        "tis",
        "seq-tis",
        "icepop",
        "seq-icepop",
        "token-mask",
        "outlier-mask",
        "seq-mask",
        "geo-mask",
    ],
)
def test_bounds_do_not_change_advantages(correction):
    """A bound changes the gradient to the sum over groups of what it leaves of each token's."""
    setting = off_policy(BANDIT)
    row = RLOO.changed(
        {"correction.kind": correction, "correction.low": 0.8, "correction.high": 1.3}
    )
    rho = (setting.logits.log_softmax(-1) - setting.sampler.log_softmax(-1)).exp()[0]
    kept = {
        "tis": rho.clamp(max=1.3),
        "seq-tis": rho.clamp(max=1.3),
        "icepop": rho * ((rho >= 0.8) & (rho <= 1.3)),
        "seq-icepop": rho * ((rho >= 0.8) & (rho <= 1.3)),
        "token-mask": ((rho >= 0.8) & (rho <= 1.3)).double(),
        "outlier-mask": ((rho >= 0.8) & (rho <= 1.3)).double(),
        "seq-mask": ((rho >= 0.8) & (rho <= 1.3)).double(),
        "geo-mask": ((rho >= 0.8) & (rho <= 1.3)).double(),
    }[correction]
    assert (rho > 1.3).any() and (rho < 0.8).any()
    p, mu = setting.logits.softmax(-1)[0], setting.sampler.softmax(-1)[0]
    advantages = BANDIT.returns - mu @ BANDIT.returns
    drawn_as = mu * kept * advantages
    same(expected_gradient(setting, row, 3)[0], drawn_as - p * drawn_as.sum())


def test_clipping_drops_tokens_beyond_the_bounds():
    setting = off_policy(BANDIT)
    row = RLOO.changed(
        {"surrogate": "clip", "old_logprobs": "sampling", "surrogate.dual_clip": 0.0}
    )
    row = row.changed({"surrogate.clip_low": 0.1, "surrogate.clip_high": 0.1})
    got, expected = expected_gradient(setting, row, 2), torch.zeros(3, dtype=torch.float64)
    p, mu = setting.logits.softmax(-1)[0], setting.sampler.softmax(-1)[0]
    for i in range(3):
        for j in range(3):
            # In a pair, the advantage of i is its return minus that of j.
            a, ratio = BANDIT.returns[i] - BANDIT.returns[j], p[i] / mu[i]
            if not ((a > 0 and ratio > 1.1) or (a < 0 and ratio < 0.9)):
                step = -p.clone()
                step[i] += 1
                expected += mu[i] * mu[j] * ratio * a * step
    same(got[0], expected)
    assert (got - truth(setting)).norm() > 0.05 * truth(setting).norm()


def referred(world):
    setting = Setting.on_policy(world)
    setting.reference = setting.logits + drawn(world, 5, 0.6)
    return setting, setting.reference.log_softmax(-1)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_divergence_in_the_loss(estimator):
    """k1 has no gradient; k2 and k3+ have that of KL(pi || ref) where visits are held fixed, k3
    that of KL(ref || pi)."""
    setting, ref = referred(CHAIN)
    row = RLOO.changed({"kl.coef": 0.3, "kl.estimator": estimator})
    forward = expected_slope(setting, lambda pi: (pi.exp() * (pi - ref)).sum(-1))
    backward = expected_slope(setting, lambda pi: (ref.exp() * (ref - pi)).sum(-1))
    part = {"k1": 0 * forward, "k2": forward, "k3": backward, "k3+": forward}[estimator]
    same(expected_gradient(setting, row, 2), truth(setting) - 0.3 * part)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_divergence_in_the_loss_times_the_ratio(estimator):
    """k1 and k3 then have the gradient of KL(pi || ref) where visits are held fixed: their means
    are the divergence, whatever the policy. The mean of k2 is not, and k3+ has its slope."""
    setting, ref = referred(CHAIN)
    row = RLOO.changed({"kl.coef": 0.3, "kl.estimator": estimator, "kl.ratio": True})
    forward = expected_slope(setting, lambda pi: (pi.exp() * (pi - ref)).sum(-1))
    error = expected_gradient(setting, row, 2) - truth(setting) + 0.3 * forward
    assert (error.norm() < 1e-12) == (estimator in ("k1", "k3"))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_divergence_in_the_reward(estimator):
    """k1 has the gradient of the divergence of whole episodes. k3 lacks how its own value changes
    with the policy, the gradient of KL(ref || pi) where visits are held fixed."""
    setting, ref = referred(CHAIN)
    row = GAE.changed(
        {"advantage.lam": 1.0, "kl.coef": 0.3, "kl.place": "reward", "kl.estimator": estimator}
    )
    at = setting.logits.clone().requires_grad_()
    apart = CHAIN.logprobs(at) - CHAIN.logprobs(setting.reference)
    (whole,) = torch.autograd.grad(CHAIN.expectation(at, apart), at)
    if estimator == "k3":
        whole = whole - expected_slope(setting, lambda pi: (ref.exp() * (ref - pi)).sum(-1))
    same(expected_gradient(setting, row, 1), truth(setting) - 0.3 * whole)


def test_whitening_of_several_updates_at_once_is_refused():
    setting = Setting.on_policy(BANDIT)
    with pytest.raises(ValueError, match="one at a time"):
        gradients(Updates.of(setting, [[(0, 1)], [(1, 2)]]), ALGORITHMS["ppo"])


def test_groups_enumerate_all_outcomes():
    groups, weights = all_groups(Setting.on_policy(CHAIN), 3)
    assert len(groups) == math.comb(8 + 3 - 1, 3) and weights.sum().item() == pytest.approx(1)


def test_a_tree_with_a_gap_is_refused():
    with pytest.raises(ValueError, match="begins with 'b'"):
        World({"ask": {"a": (None, 1.0)}, "other": {"a": (None, 0), "b": (None, 0)}}, ["ask"])
