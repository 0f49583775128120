"""Intervals cover, and the paired test finds a planted difference, as often as they say.

All random numbers have fixed seeds, so that the shares are the same on each machine.
``benchmarks/evaluation/intervals.py`` simulates more evaluations.
"""

from __future__ import annotations

import numpy as np
import pytest

from rl.evaluation.paired import paired_test
from rl.evaluation.power import detectable_difference, power_of
from rl.evaluation.task_interval import task_interval
from rl.run.metrics.intervals import pass_at_k

EVALUATIONS = 200


@pytest.mark.parametrize(("k", "true"), [(1, 1 / 2), (4, 6 / 7), (7, 14 / 15)])
def test_the_interval_of_pass_at_k_covers(k, true):
    """Tasks' success rates are uniform twice over: 1 - E[(1 - p)^4] is 6 / 7 for beta(2, 2).

    For k = 7 few of 40 tasks are wrong at all. An interval by the observed variance alone covers
    80%.
    """
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(EVALUATIONS):
        right = rng.binomial(8, rng.beta(2, 2, 40)).tolist()
        low, high = task_interval([pass_at_k(8, count, k) for count in right])
        covered += low <= true <= high
    # Three standard errors of 200 evaluations around 94 to 97%.
    assert covered / EVALUATIONS >= 0.94 - 0.05


@pytest.mark.parametrize(("right", "wrong"), [(20, 1), (8, 2), (2, 30)])
def test_the_interval_covers_where_nearly_all_tasks_are_right_or_wrong(right, wrong):
    """For rates of beta(20, 1), 1 - E[(1 - p)^4] is 1 - 4! 20! / 24!, which is .9999.

    Half a wrong task among 40 would hold the upper bound below that.
    """
    k = 4 if right > wrong else 1
    true = 1 - np.prod([(wrong + i) / (right + wrong + i) for i in range(k)])
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(EVALUATIONS):
        counts = rng.binomial(8, rng.beta(right, wrong, 40)).tolist()
        low, high = task_interval([pass_at_k(8, count, k) for count in counts])
        covered += low <= true <= high
    assert covered / EVALUATIONS >= 0.95 - 0.04


def test_planted_points_are_found_with_the_announced_power():
    """+5 points on 80 tasks with 16 episodes: the test finds them as often as it announces."""
    rng = np.random.default_rng(5)
    evaluations, found, covered = 120, 0, 0
    deviations = []
    for _ in range(evaluations):
        rates = 0.95 * rng.beta(2, 2, 80)[:, None]
        base = rng.binomial(1, rates, (80, 16)).tolist()
        test = paired_test(rng.binomial(1, rates + 0.05, (80, 16)).tolist(), base)
        found += not test.is_noise
        covered += test.low <= 0.05 <= test.high
        deviations.append(test.deviation)
    deviation = float(np.sqrt(np.mean(np.square(deviations))))
    announced = power_of(0.05, deviation, 80)
    error = 3 * np.sqrt(announced * (1 - announced) / evaluations)
    assert 0.5 < announced < 0.95
    assert found / evaluations == pytest.approx(announced, abs=error)
    assert detectable_difference(deviation, 80, power=announced) == pytest.approx(0.05, rel=1e-6)
    assert covered / evaluations >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / evaluations)
