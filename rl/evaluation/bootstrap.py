"""Bootstrap intervals of means over tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from rl.evaluation.student import t_quantile
from rl.run.metrics.intervals import pass_rate

SEED = 20
"""Seed of all resampling in an evaluation. Equal episodes therefore give equal numbers."""
RESAMPLES = 4000
"""Number of bootstrap samples."""
_NORMAL = NormalDist()


def bootstrap_interval(values: Sequence[float], seed: int = SEED) -> tuple[float, float]:
    """The 95% interval of the mean of ``values``, one value for each task.

    The bootstrap resamples tasks, because only tasks are independent: the episodes of one task stay
    together. Percentiles of the plain bootstrap are too narrow for few tasks, so this uses expanded
    percentiles (Hesterberg 2015, arXiv 1411.5279, section 4.3). If all values are equal, resampling
    shows no spread, and the result is Wilson's interval.

    Args:
        values: a number from 0 to 1 for each task.
        seed: the seed of the resampling.

    Returns:
        The lower and the upper bound. With fewer than two tasks, the interval is [0, 1].

    Example:
        >>> low, high = bootstrap_interval([0.2, 0.4, 0.6, 0.8])
        >>> low < 0.5 < high
        True
    """
    n = len(values)
    if n < 2:
        return 0.0, 1.0
    if max(values) - min(values) < 1e-12:
        rate = pass_rate(values)
        return rate.low, rate.high
    rng = np.random.default_rng(seed)
    # A row says how often the sample contains each task.
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = counts @ np.asarray(values, dtype=float) / n
    tail = _NORMAL.cdf(-math.sqrt(n / (n - 1)) * t_quantile(0.975, n - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
