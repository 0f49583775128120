"""What a ledger of tasks finds wrong with a run's files."""

from __future__ import annotations

import pytest

from benchmarks.serving.chaos import predicted
from benchmarks.serving.task_ledger import order_of
from rl.rollout.task_order import TaskOrder


def test_the_order_is_that_of_the_curriculum():
    assert order_of(7, seed=3, count=20) == TaskOrder(7, 3).take(0, 20)


def test_a_prediction_of_three_values_by_hand():
    # Mean 2, deviation 1, Student's quantile of 2 degrees 4.30, sqrt(4/3) = 1.1547.
    low, high = predicted([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.965, 2 + 4.965), abs=1e-3)
