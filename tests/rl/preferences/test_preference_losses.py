"""Losses of preferences and the labels they learn from: golden values, and what always holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.preferences.losses import (
    answer_log_ratios,
    bradley_terry,
    dpo_loss,
    long2short_pairs,
    ranked_pairs,
    ranking_loss,
    solution_score,
    step_labels,
    turn_advantages,
)

numbers = st.floats(-8, 8)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("better", "worse", "margin", "loss"),
    [
        (1.2, 0.3, 0.0, 0.3411539),
        (0.7, 0.7, 0.0, 0.6931472),
        (1.2, 0.3, 0.5, 0.5130153),
    ],
)
def test_bradley_terry(better, worse, margin, loss):
    given_margin = f64([margin])
    assert bradley_terry(f64([better]), f64([worse]), given_margin).item() == pytest.approx(
        loss, abs=5e-8
    )


def test_a_soft_label_is_a_cross_entropy_and_pulls_to_its_own_odds():
    """d = log 3 is the preference 0.75: there the loss is its entropy, and the gradient 0."""
    difference = f64([math.log(3)]).requires_grad_()
    loss = bradley_terry(difference, f64([0.0]), label=f64([0.75]))
    assert loss.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    (slope,) = torch.autograd.grad(loss.sum(), difference)
    assert slope.item() == pytest.approx(0, abs=1e-12)
    # By hand, with both on the wrong side of a margin of 1: -.75 log s(.2 - 1) - .25 log s(-.2 - 1)
    loss = bradley_terry(f64([0.2]), f64([0.0]), margin=1.0, label=0.75)
    by_hand = 0.75 * math.log1p(math.exp(0.8)) + 0.25 * math.log1p(math.exp(1.2))
    assert loss.item() == pytest.approx(by_hand)


@given(numbers, numbers, numbers, st.floats(0, 2), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_preferences_see_differences_only_and_have_two_sides(better, worse, shift, margin, label):
    loss = bradley_terry(f64(better), f64(worse), margin, label)
    shifted = bradley_terry(f64(better + shift), f64(worse + shift), margin, label)
    turned = bradley_terry(f64(worse), f64(better), margin, 1 - label)
    torch.testing.assert_close(shifted, loss, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(turned, loss, rtol=1e-10, atol=1e-10)


def test_far_apart_is_finite():
    loss = bradley_terry(f64([-900.0, 900.0]), f64([900.0, -900.0]))
    assert loss.tolist() == [1800.0, 0.0]


def test_ranking_of_three():
    assert ranking_loss(f64([2.0, 1.0, 0.0]), [3, 2, 1]).item() == pytest.approx(
        0.2511505, abs=5e-8
    )


def test_ties_are_dropped_from_the_sum_and_stay_in_the_denominator():
    assert ranked_pairs([1, 2, 1]) == [(1, 0), (1, 2)]
    tied = ranking_loss(f64([0.0, 0.0, 5.0]), [1, 1, 0])
    assert tied.item() == pytest.approx(2 * math.log1p(math.exp(5)) / 3)
    assert ranking_loss(f64([0.3, 0.9]), [4, 4]).item() == 0


def test_a_ranking_of_two_is_a_pair():
    pair = bradley_terry(f64([0.4]), f64([0.1]))
    assert ranking_loss(f64([0.1, 0.4]), [0, 1]).item() == pytest.approx(pair.item())


@pytest.mark.parametrize(("rewards", "ranking"), [([1.0], [1]), ([1.0, 2.0], [1])])
def test_nothing_to_rank_is_refused(rewards, ranking):
    with pytest.raises(ValueError, match="give two or more of each"):
        ranking_loss(f64(rewards), ranking)


@given(st.lists(st.tuples(numbers, st.integers(0, 3)), min_size=2, max_size=6), st.randoms())
@settings(max_examples=60, deadline=None)
def test_a_ranking_does_not_depend_on_the_order_of_answers(answers, random):
    shuffled = random.sample(answers, len(answers))
    one, other = (
        ranking_loss(f64([reward for reward, _ in some]), [grade for _, grade in some])
        for some in (answers, shuffled)
    )
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_dpo():
    better, worse = f64([2.0]).requires_grad_(), f64([-1.0])
    loss = dpo_loss(better, worse, 0.1)
    assert loss.item() == pytest.approx(0.5543552, abs=5e-8)
    (slope,) = torch.autograd.grad(loss.sum(), better)
    # Equation 7's gradient: -beta sigma(-beta d).
    assert slope.item() == pytest.approx(-0.1 / (1 + math.exp(0.3)))


def test_sweets_preference_over_turns():
    better, worse = (f64(a).sum()[None] for a in ([0.2, 0.3], [-0.1, 0.05]))
    assert dpo_loss(better, worse, 0.1).item() == pytest.approx(0.6660253, abs=5e-8)


def test_answers_log_ratios():
    """Answer 0 has turns of two tokens and one, answer 1 a turn of two."""
    log_ratios = f64([0.4, 0.2, 1.0, -0.5, 0.1])
    answers, turns = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 2, 1, 1])
    expected = {
        "sum": [1.6, -0.4],
        "mean": [1.6 / 3, -0.2],
        "turn-mean": [0.3 + 1.0, -0.2],
    }
    for reduction, values in expected.items():
        found = answer_log_ratios(log_ratios, answers, turns, reduction)
        torch.testing.assert_close(found, f64(values), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"reduction \(max\) must be one of sum, mean, turn-mean"):
        answer_log_ratios(log_ratios, answers, turns, "max")


def test_turn_advantages_are_the_terms_of_turn_mean():
    logprobs, ref = f64([-1.0, -2.0, -0.5, -3.0, -1.0]), f64([-1.4, -2.2, -1.5, -2.5, -1.1])
    found = turn_advantages(logprobs, ref, torch.tensor([0, 0, 1, 2, 2]))
    torch.testing.assert_close(found, f64([0.3, 1.0, -0.2]))
    whole = answer_log_ratios(
        logprobs - ref, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 0, 0]), "turn-mean"
    )
    torch.testing.assert_close(whole, torch.stack([found[0] + found[1], found[2]]))


def test_math_shepherds_labels():
    """The second step: three of its eight completions are right."""
    right = torch.zeros(3, 8, dtype=torch.bool)
    right[0], right[1, [0, 4, 7]] = True, True
    assert step_labels(right, "hard").tolist() == [1, 1, 0]
    assert step_labels(right, "soft").tolist() == [1, 0.375, 0]
    with pytest.raises(ValueError, match=r"estimate \(mean\) must be hard or soft"):
        step_labels(right, "mean")


def test_a_solution_is_as_good_as_its_steps():
    scores = f64([0.9, 0.4, 0.8])
    assert solution_score(scores, "min").item() == 0.4
    assert solution_score(scores, "product").item() == pytest.approx(0.288)
    with pytest.raises(ValueError, match=r"by \(last\) must be min or product"):
        solution_score(scores, "last")


def test_long2short_pairs():
    lengths, right = [140, 100, 160, 90, 120, 150], [True, True, True, False, False, True]
    assert long2short_pairs(lengths, right) == [(1, 2), (1, 4), (1, 5)]
    assert long2short_pairs(lengths, [False] * 6) == []
    assert long2short_pairs([7, 7], [True, False]) == [], "a wrong one must be longer"
    assert long2short_pairs([7, 7, 8], [True] * 3, longer=1.0) == [(0, 1), (0, 2)]
