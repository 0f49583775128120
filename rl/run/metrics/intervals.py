"""Rates and means over episodes, with their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

ROUNDING = 1e-6
"""Largest difference by which rounding can lower the success of a right episode."""
Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """A share of successes with its 95% interval."""

    rate: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}] of {self.count}"


def pass_rate(successes: Sequence[float]) -> PassRate:
    """The mean success with Wilson's 95% score interval (Wilson 1927, JASA 22, p. 209).

    Values outside [0, 1] are returns of an environment without a success score. If there are such
    values, the interval is the normal one: the mean ± 1.96 standard errors.

    Raises:
        ValueError: ``successes`` is empty.
    """
    n = len(successes)
    if n == 0:
        raise ValueError("a pass rate needs at least one episode")
    p = fmean(successes)
    if min(successes) < 0 or max(successes) > 1:
        half = Z_95 * stdev(successes) / math.sqrt(n) if n > 1 else math.inf
        return PassRate(p, p - half, p + half, n)
    return PassRate(p, *_wilson(p, n), n)


def pass_rate_of_tasks(by_task: Sequence[Sequence[float]]) -> PassRate:
    """The mean success over tasks, with its 95% interval for the population of such tasks.

    Only tasks are independent; the episodes of one task are correlated. The interval is therefore
    Wilson's interval for the effective number of episodes. The effective number is the number of
    independent episodes whose mean would have the observed variance of the tasks' means (the design
    effect of Kish 1965, in Wilson's interval as in Korn and Graubard 1998, Survey Methodology 24,
    p. 193). With one episode per task, the interval equals that of :func:`pass_rate`.

    Args:
        by_task: the successes of each task's episodes. Tasks without episodes do not count.

    Raises:
        ValueError: there is no episode.
    """
    tasks = [values for values in by_task if values]
    flat = [value for values in tasks for value in values]
    if len(flat) == len(tasks):
        return pass_rate(flat)
    means = [fmean(values) for values in tasks]
    p, n = fmean(means), len(tasks)
    variance = stdev(means) ** 2 / n if n > 1 else math.inf
    if min(flat) < 0 or max(flat) > 1:
        half = _t_95(n - 1) * math.sqrt(variance) if n > 1 else math.inf
        return PassRate(p, p - half, p + half, len(flat))
    # Equal means give no estimate of the variance: each task then counts once. Otherwise an
    # estimated variance widens the interval as Student's t (Korn and Graubard 1998, section 2).
    effective = float(n)
    if 0 < variance < math.inf:
        effective = p * (1 - p) / variance * (Z_95 / _t_95(n - 1)) ** 2
    return PassRate(p, *_wilson(p, min(max(effective, 1.0), len(flat))), len(flat))


def _wilson(p: float, n: float) -> tuple[float, float]:
    """The bounds of Wilson's 95% interval for a share p of n."""
    centre = (p + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(p * (1 - p) / n + Z_95**2 / (4 * n * n))
    # At 0 and 1 the interval ends exactly at p; rounding would miss it slightly.
    return min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half))


def mean_interval(
    by_task: Sequence[Sequence[float]], possible: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """The 95% interval of the mean over all episodes, for the population of such tasks.

    Only tasks are independent; the episodes of one task are correlated. The standard error is
    therefore clustered by task. The quantile is Student's t with (tasks - 1) degrees of freedom.

    Args:
        by_task: the values of each task's episodes.
        possible: the least and the greatest possible mean, at which the interval ends. They are
            ignored if the mean lies outside of them.

    Returns:
        The lower and upper bound. With fewer than two tasks, both are those of ``possible``.
    """
    tasks = [values for values in by_task if values]
    count = sum(map(len, tasks))
    if len(tasks) < 2:
        return possible
    mean = sum(map(sum, tasks)) / count
    least, most = possible if possible[0] <= mean <= possible[1] else (-math.inf, math.inf)
    squares = sum(sum(value - mean for value in values) ** 2 for values in tasks)
    error = math.sqrt(squares * len(tasks) / (len(tasks) - 1)) / count
    half = _t_95(len(tasks) - 1) * error
    # A bound of an environment can be -0.0, which would show as -0.000.
    return max(least, mean - half) + 0.0, min(most, mean + half) + 0.0


def _t_95(degrees: int) -> float:
    """The two-sided 95% quantile of Student's t (Abramowitz and Stegun 1964, 26.7.5)."""
    if degrees < 3:
        # The expansion is for many degrees; these two values are exact.
        return (12.706204736, 4.302652730)[degrees - 1]
    z, n = Z_95, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def pass_at_k(episodes: int, right: int, k: int) -> float:
    """The unbiased estimate of the chance that at least one of k episodes is right.

    The estimate is ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374, equation 1),
    for n episodes of which c are right.

    Raises:
        ValueError: k is not from 1 to ``episodes``.
    """
    if not 1 <= k <= episodes:
        raise ValueError(f"k ({k}) must be from 1 to the number of episodes ({episodes})")
    return 1 - math.comb(episodes - right, k) / math.comb(episodes, k)
