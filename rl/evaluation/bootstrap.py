"""Bootstrap intervals of means over tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rl.run.metrics.intervals import pass_rate

SEED = 20
"""Seed of all resampling in an evaluation. Equal episodes therefore give equal numbers."""
RESAMPLES = 2000
"""Number of bootstrap samples."""
_NO_SPREAD = 1e-12


def bootstrap_interval(values: Sequence[float], seed: int = SEED) -> tuple[float, float]:
    """The 95% interval of the mean of ``values``, one value for each task.

    The bootstrap resamples tasks, because only tasks are independent: the episodes of one task stay
    together. It is the studentised bootstrap (Efron and Tibshirani 1993, section 12.5), because
    percentiles are too narrow for few tasks, and for pass@k near 1. No bound is further away than
    Wilson's, because right and wrong tasks vary most among all values with the same mean. If all
    values are equal, resampling shows no spread, and the result is Wilson's interval.

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
    # Rounding of means may leave the range by a little.
    known = np.clip(np.asarray(values, dtype=float), 0.0, 1.0)
    widest = pass_rate(known.tolist())
    if np.ptp(known) < _NO_SPREAD:
        return widest.low, widest.high
    mean, error = float(known.mean()), float(known.std(ddof=1)) / math.sqrt(n)
    resampled = known[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]
    offsets = resampled.mean(axis=1) - mean
    errors = resampled.std(axis=1, ddof=1) / math.sqrt(n)
    # A resample of equal tasks has no spread: it is infinitely far from the mean.
    spread = errors > _NO_SPREAD
    far = np.where(offsets > 0, np.inf, -np.inf)
    t = np.where(spread, offsets / np.where(spread, errors, 1.0), far)
    low_t, high_t = np.quantile(t, [0.025, 0.975], method="nearest")
    low, high = float(mean - high_t * error), float(mean - low_t * error)
    return max(widest.low, low), min(widest.high, high)
