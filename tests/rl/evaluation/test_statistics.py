"""Statistics of evaluations against SciPy, published numbers and enumeration."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
import scipy.stats

from rl.evaluation.answers import (
    answer_entropy,
    cluster_sizes,
    final_answer,
    majority_at_k,
    normalised,
)
from rl.evaluation.paired import (
    paired_pass_test,
    paired_test,
    sign_flip_test,
    signed_rank_test,
    t_test,
)
from rl.evaluation.passk import (
    best_of_n,
    pass_curve,
    powers_of_two,
    spread_over_passes,
    within_tokens,
)
from rl.evaluation.power import (
    detectable_difference,
    power_of,
    tasks_needed,
    unpaired_deviation,
)
from rl.evaluation.student import t_cdf, t_quantile
from rl.evaluation.task_interval import task_interval

SOBER_RUNS = [30, 26.667, 33.333, 23.333, 30, 26.667, 30, 36.667, 20, 26.667]
A, B = [0.5, 0.6, 0.7, 0.2, 0.9, 0.4], [0.4, 0.5, 0.7, 0.1, 0.6, 0.4]
"""Ten runs on AIME and two models' tasks, as *A Sober Look* tests them (arXiv 2504.07086)."""


@pytest.mark.parametrize("degrees", [1, 2, 3.5, 9, 29, 400])
def test_student_against_scipy(degrees):
    for t in (-40.0, -2.2, -1.0, 0.0, 0.3, 1.0, 3.1, 12.0):
        assert t_cdf(t, degrees) == pytest.approx(scipy.stats.t.cdf(t, degrees), rel=1e-9)
    for p in (0.001, 0.2, 0.5, 0.8, 0.975, 0.9999):
        expected = scipy.stats.t.ppf(p, degrees)
        assert t_quantile(p, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_pass_at_k_up_to_256_against_enumeration_and_scipy():
    attempts = [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    subsets = list(itertools.combinations(attempts, 5))
    assert pass_curve([(10, 3)], [5])[5].value == pytest.approx(fmean(map(max, subsets)))
    for n, c, k in [(256, 1, 256), (256, 3, 128), (256, 0, 256), (300, 7, 256), (256, 256, 1)]:
        expected = 1 - scipy.stats.hypergeom(n, c, k).pmf(0)
        assert pass_curve([(n, c), (n, c)], [k])[k].value == pytest.approx(expected, abs=1e-12)
    assert powers_of_two(256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert powers_of_two(3) == [1, 2]
    with pytest.raises(ValueError, match=r"k \(5\) must be from 1"):
        pass_curve([(4, 1)], [5])


def test_the_interval_of_many_tasks_is_normal():
    values = [0.1 + 0.8 * i / 999 for i in range(1000)]
    error = np.std(values) / math.sqrt(1000)
    low, high = task_interval(values)
    assert (low, high) == pytest.approx((0.5 - 1.96 * error, 0.5 + 1.96 * error), abs=0.2 * error)
    assert (low, high) == task_interval(values)
    assert (low, high) != task_interval(values, seed=1)


def test_the_interval_of_a_skewed_sample_reaches_further_down():
    low, high = task_interval([0.2, 0.5] + [1.0] * 38)
    mean = (0.7 + 38) / 40
    assert mean - low > 2 * (high - mean)


@pytest.mark.parametrize("right", [0, 1, 17, 29, 30])
def test_right_and_wrong_tasks_have_jeffreyss_interval(right):
    """The quantiles of beta(right + 1/2, wrong + 1/2); 0 and 1 at the ends."""
    wrong = 30 - right
    low, high = scipy.stats.beta.ppf([0.025, 0.975], right + 0.5, wrong + 0.5)
    found = task_interval([1.0] * right + [0.0] * wrong)
    expected = (low if right else 0.0, high if wrong else 1.0)
    assert found == pytest.approx(expected, abs=0.015)
    assert task_interval([1.0]) == (0.0, 1.0)


def test_equal_tasks_that_are_half_right_have_no_certain_mean():
    """The sum of the added weights is beta(1, 30), and each of the two has half of it."""
    low, high = task_interval([0.5] * 30)
    assert 0.45 < low < 0.49
    assert high == pytest.approx(1 - low, abs=0.005)


def test_best_of_n_is_the_mean_over_all_subsets():
    scores, rights = [0.3, 0.9, 0.9, -1.0, 0.1], [1.0, 0.0, 1.0, 1.0, 0.0]
    for n in range(1, 6):
        chosen = []
        for subset in itertools.combinations(range(5), n):
            most = max(scores[i] for i in subset)
            chosen.append(fmean(rights[i] for i in subset if scores[i] == most))
        assert best_of_n(scores, rights, n) == pytest.approx(fmean(chosen))
    with pytest.raises(ValueError, match=r"n \(6\) must be from 1"):
        best_of_n(scores, rights, 6)


def test_majority_at_k_is_the_mean_over_all_subsets():
    answers = ["A", "A", "B", "A", "C", "B", None]
    rights = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    for k in range(1, 8):
        chosen = []
        for subset in itertools.combinations(range(7), k):
            votes = [answers[i] for i in subset if answers[i] is not None]
            most = max((votes.count(a) for a in votes), default=0)
            winners = {a for a in votes if votes.count(a) == most}
            chosen.append(fmean(float(a == "A") for a in winners) if winners else 0.0)
        assert majority_at_k(answers, rights, k) == pytest.approx(fmean(chosen), abs=1e-12)
    assert majority_at_k([None, None], [0.0, 0.0], 2) == 0.0
    # Two answers: 8 right episodes of 16 win half of the votes of 4, whatever the number of tasks.
    assert majority_at_k(["A"] * 8 + ["B"] * 8, [1.0] * 8 + [0.0] * 8, 4) == pytest.approx(0.5)
    # Hypergeometric: of 512 episodes 300 are right, and 255 vote.
    ways = [math.comb(300, right) * math.comb(212, 255 - right) for right in range(256)]
    expected = sum(ways[128:]) / sum(ways)
    found = majority_at_k(["A"] * 300 + ["B"] * 212, [1.0] * 300 + [0.0] * 212, 255)
    assert found == pytest.approx(expected, rel=1e-9)


def test_clusters_and_entropy_of_answers():
    answers = ["A", "A", "B", "A", "C"]
    assert cluster_sizes(answers) == [3, 1, 1]
    assert answer_entropy(answers) == pytest.approx(scipy.stats.entropy([0.6, 0.2, 0.2]))
    assert answer_entropy(["A", "A"]) == answer_entropy([None]) == 0.0
    assert cluster_sizes([None]) == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}} and \boxed{1,200.0}", "1200"),
        ("<think>\\boxed{3}</think> <answer> Paris </answer>", "paris"),
        ("6 x 7 = 42\n#### 42", "42"),
        ("I think.\n**Answer:** 0.5", "1/2"),
        ("print(1)\n  # done", "print(1) # done"),
        ("<think>hm</think>", None),
    ],
)
def test_the_final_answer_of_a_text(text, answer):
    assert final_answer(text) == answer


def test_equal_numbers_are_equal_answers():
    assert len({normalised(t) for t in (r"\frac{1}{2}", "0.5", "1/2", "$.50$"[:0] + "0.50")}) == 1
    assert normalised("1,2") == "1,2"
    assert normalised("1e5") != normalised("100000")


def wilson(right, count):
    found = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    return found.low, found.high


def test_success_within_a_budget_of_tokens():
    spent = within_tokens([[10, 30, 20]], [[1.0, 1.0, 0.0]], [5, 10, 20, 32])
    spent = {budget: found.rate for budget, found in spent.items()}
    assert list(spent.values()) == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3])


def test_the_success_within_a_budget_has_the_interval_of_tasks():
    """Copies of each episode are no evidence: the interval stays that of 20 tasks."""
    tokens, rights = [[10], [30]] * 10, [[1.0]] * 20
    (one,) = within_tokens(tokens, rights, [16]).values()
    (many,) = within_tokens([t * 9 for t in tokens], [r * 9 for r in rights], [16]).values()
    assert (one.rate, one.low, one.high) == pytest.approx((0.5, *wilson(10, 20)))
    assert many.rate == 0.5
    assert many.high - many.low == pytest.approx(one.high - one.low, rel=0.1)


def test_the_spread_over_passes_has_the_divisor_n_minus_1():
    spread = spread_over_passes([SOBER_RUNS])
    assert (spread.mean, spread.std) == pytest.approx((28.3334, 4.779095), abs=1e-6)
    assert (spread.low, spread.high, spread.passes) == (20, 36.667, 10)
    assert spread_over_passes([[1.0], [0.0]]) is None
    assert spread_over_passes([[1.0, 0.0], [0.0, 0.0]]).mean == 0.25


def test_the_published_paired_tests():
    differences = [a - b for a, b in zip(A, B, strict=True)]
    t, p = t_test(differences)
    assert (t, p) == pytest.approx((2.236068, 0.0377934), abs=1e-6)
    assert signed_rank_test(differences) == (10.0, 0.0625)
    assert sign_flip_test(differences) == (0.125, "exact")


def test_the_signed_rank_test_against_scipy():
    differences = np.random.default_rng(3).normal(0.2, 1, 24)
    theirs = scipy.stats.wilcoxon(differences, alternative="greater", method="exact")
    ours = signed_rank_test(differences.tolist())
    assert ours == pytest.approx((theirs.statistic, theirs.pvalue))


def test_the_signed_rank_test_of_many_tasks_is_quick_and_close_to_the_exact_test():
    differences = np.random.default_rng(3).normal(0.05, 1, 5000)
    theirs = scipy.stats.wilcoxon(
        differences, alternative="greater", method="approx", correction=True
    )
    assert signed_rank_test(differences.tolist()) == pytest.approx(
        (theirs.statistic, theirs.pvalue)
    )
    # With equal sizes the test is the sign test.
    exact = scipy.stats.binomtest(300, 550, alternative="greater").pvalue
    assert signed_rank_test([1.0] * 300 + [-1.0] * 250)[1] == pytest.approx(exact, abs=2e-4)


def test_returns_that_are_no_multiples_of_a_fine_grid_have_no_p_value_of_0():
    p, method = sign_flip_test([0.1000061] * 16, scale=720720)
    assert (p > 0, method) == (True, "20000 sign flips, seed 20")


def test_a_difference_within_noise_has_0_in_its_interval():
    # Student's interval alone ends below 0.
    counts = [(3, 0), (3, 1), (2, 0), (3, 2), (1, 0)]
    first, second = ([[1.0] * pair[i] + [0.0] * (4 - pair[i]) for pair in counts] for i in (1, 0))
    test = paired_test(first, second)
    assert (test.p_value, test.is_noise, test.high) == (0.0625, True, 0.0)
    assert test.low < test.difference < 0


@pytest.mark.parametrize(("won", "lost", "tied"), [(6, 0, 4), (9, 3, 20), (40, 22, 300)])
def test_with_one_episode_the_exact_test_is_mcnemars(won, lost, tied):
    first = [[1.0]] * won + [[0.0]] * (lost + tied)
    second = [[0.0]] * won + [[1.0]] * lost + [[0.0]] * tied
    test = paired_test(first, second)
    assert test.p_value == pytest.approx(scipy.stats.binomtest(won, won + lost).pvalue)
    assert (test.method, test.differing, test.tasks) == ("exact", won + lost, won + lost + tied)
    # Bonett and Price 2012: z -> t, because the variance is estimated.
    n = won + lost + tied
    p, q = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = scipy.stats.t.ppf(0.975, n + 1) * math.sqrt((p + q - (p - q) ** 2) / (n + 1))
    assert (test.low, test.high) == pytest.approx((p - q - half, p - q + half))


def test_the_exact_test_with_several_episodes_against_random_flips():
    rng = np.random.default_rng(0)
    first = rng.binomial(1, 0.55, (40, 4)).tolist()
    second = rng.binomial(1, 0.45, (40, 4)).tolist()
    test = paired_test(first, second)
    differences = np.mean(first, axis=1) - np.mean(second, axis=1)
    signs = rng.choice([-1, 1], (20_000, 40))
    share = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert test.method == "exact"
    assert test.p_value == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize("k", [1, 4])
def test_the_paired_test_of_pass_at_k_for_k_of_1_and_of_all_episodes(k):
    rng = np.random.default_rng(3)
    first, second = (rng.binomial(1, p, (30, 4)).tolist() for p in (0.6, 0.3))
    counts = [[(4, sum(task)) for task in model] for model in (first, second)]
    # With k = 4, a task counts as one attempt that is right if any of its episodes is.
    whole = [[[float(max(task))] for task in model] for model in (first, second)]
    expected = paired_test(*((first, second) if k == 1 else whole))
    found = paired_pass_test(*counts, k)
    for name in ("difference", "low", "high", "p_value", "deviation", "detectable"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name


def test_the_paired_test_of_pass_at_k_by_hand():
    """Tasks with 2, 1 and 0 right of 4 have pass@2 of 5 / 6, 1 / 2 and 0."""
    test = paired_pass_test([(4, 2), (4, 1), (4, 0)], [(4, 1), (4, 0), (4, 0)], 2)
    assert test.difference == pytest.approx((1 / 3 + 1 / 2) / 3)
    # Of the four signs of 1 / 3 and 1 / 2, two have a sum as far from 0.
    assert (test.p_value, test.differing) == (0.5, 2)
    # One more right episode of four at a task without one adds 1 / 2.
    widened = [1 / 3, 1 / 2, 0, 1 / 2, -1 / 2]
    half = scipy.stats.t.ppf(0.975, 4) * np.std(widened, ddof=1) / math.sqrt(5)
    assert (test.low, test.high) == pytest.approx(
        (np.mean(widened) - half, np.mean(widened) + half)
    )
    with pytest.raises(ValueError, match="2 and 3 tasks"):
        paired_pass_test([(1, 1)] * 2, [(1, 1)] * 3, 1)


def test_returns_without_a_grid_are_tested_by_random_flips_with_a_seed():
    differences = np.random.default_rng(1).normal(0.3, 1, 30).tolist()
    p, method = sign_flip_test(differences)
    assert method == "20000 sign flips, seed 20"
    theirs = scipy.stats.ttest_1samp(differences, 0).pvalue
    assert p == pytest.approx(theirs, abs=0.02)


def test_a_paired_test_refuses_other_tasks():
    with pytest.raises(ValueError, match="2 and 3 tasks"):
        paired_test([[1.0]] * 2, [[1.0]] * 3)
    with pytest.raises(ValueError, match="at least two tasks"):
        paired_test([[1.0], []], [[1.0], [0.0]])


def test_equal_models_differ_within_noise():
    test = paired_test([[1.0, 0.0]] * 20, [[1.0, 0.0]] * 20)
    assert (test.difference, test.p_value, test.differing, test.is_noise) == (0, 1, 0, True)
    assert test.low < 0 < test.high


def test_detectable_differences_against_the_noncentral_t():
    for tasks, deviation in [(30, 0.5), (200, 0.7), (512, 0.4)]:
        difference = detectable_difference(deviation, tasks)
        shift = difference * math.sqrt(tasks) / deviation
        critical = scipy.stats.t.ppf(0.975, tasks - 1)
        exact = scipy.stats.nct.sf(critical, tasks - 1, shift)
        assert exact == pytest.approx(0.8, abs=0.01)
        assert power_of(difference, deviation, tasks) == pytest.approx(0.8)
        needed = tasks_needed(difference, deviation)
        assert abs(needed - tasks) <= 1
    assert detectable_difference(0.5, 1) == math.inf
    assert power_of(0.1, 0.0, 5) == 1.0


def test_one_models_episodes_bound_the_deviation_of_differences():
    half = [[1.0]] * 200 + [[0.0]] * 200
    assert unpaired_deviation(half) == pytest.approx(math.sqrt(0.5), rel=0.01)
    assert unpaired_deviation([[1.0]] * 400) > 0
