"""Power of a paired test: which difference an evaluation can detect, and with which chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from rl.evaluation.student import t_cdf, t_quantile

LEVEL, POWER = 0.05, 0.8
"""Level of the two-sided tests, and the power with which a difference counts as detectable."""


def detectable_difference(
    deviation: float, tasks: int, level: float = LEVEL, power: float = POWER
) -> float:
    """The smallest true difference that a paired test of ``tasks`` tasks finds with ``power``.

    It is ``(t(1 - level / 2) + t(power)) * deviation / sqrt(tasks)``, with quantiles of Student's t
    for (tasks - 1) degrees of freedom (Bloom 1995, Evaluation Review 19, p. 547).

    Args:
        deviation: standard deviation of the tasks' differences.
        tasks: number of tasks.
        level: level of the two-sided test.
        power: the chance that the test finds the difference.

    Returns:
        The difference; infinite with fewer than two tasks.

    Example:
        >>> round(detectable_difference(0.5, 400), 3)
        0.07
    """
    if tasks < 2:
        return math.inf
    sum_t = t_quantile(1 - level / 2, tasks - 1) + t_quantile(power, tasks - 1)
    return sum_t * deviation / math.sqrt(tasks)


def possible(difference: float) -> float:
    """``difference``, or infinity if it is above 1, which no difference of success is."""
    return difference if difference <= 1 else math.inf


def power_of(difference: float, deviation: float, tasks: int, level: float = LEVEL) -> float:
    """The chance that a paired test of ``tasks`` tasks finds a true difference of this size.

    The inverse of :func:`detectable_difference`.

    Example:
        >>> round(power_of(0.07, 0.5, 400), 2)
        0.8
    """
    if tasks < 2:
        return 0.0
    if deviation == 0:
        return float(difference != 0)
    shift = abs(difference) * math.sqrt(tasks) / deviation
    return t_cdf(shift - t_quantile(1 - level / 2, tasks - 1), tasks - 1)


def tasks_needed(difference: float, deviation: float, power: float = POWER) -> int:
    """The smallest number of tasks for which a true difference is detectable.

    Raises:
        ValueError: the difference is 0.

    Example:
        >>> tasks_needed(0.05, 0.5)
        787
    """
    if difference == 0:
        raise ValueError("difference (0) must not be 0: no number of tasks shows that")
    low, high = 1, 2
    while detectable_difference(deviation, high, power=power) > abs(difference):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = detectable_difference(deviation, middle, power=power) <= abs(difference)
        low, high = (low, middle) if found else (middle, high)
    return high


def unpaired_deviation(by_task: Sequence[Sequence[float]]) -> float:
    """An upper bound for the deviation of paired differences, from one model's episodes.

    Differences of two equally good models have twice the variance of one model's task means, less
    twice their covariance. Models agree on which tasks are hard, so the covariance is not negative.
    Two added tasks that are right and two that are wrong keep the bound above 0 (Agresti and Coull
    1998).
    """
    means = [fmean(values) for values in by_task if values]
    return math.sqrt(2) * stdev([*means, 0.0, 0.0, 1.0, 1.0])
