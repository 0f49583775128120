"""Student's t distribution."""

from __future__ import annotations

import functools
import math

_TOLERANCE = 1e-14
_MAX_TERMS = 10_000


def t_cdf(t: float, degrees: float) -> float:
    """The probability that Student's t with ``degrees`` degrees of freedom is at most ``t``.

    The probability is an incomplete beta function (Abramowitz and Stegun 1964, 26.7.1), computed by
    its continued fraction (26.5.8).

    Example:
        >>> round(t_cdf(2.0, 5), 6)
        0.94903
    """
    if math.isinf(t):
        return float(t > 0)
    square = degrees + t * t
    tail = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / square, t * t / square)
    return 1 - tail if t > 0 else tail


@functools.lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """The number that Student's t exceeds with probability ``1 - probability``.

    Raises:
        ValueError: ``probability`` is not between 0 and 1.

    Example:
        >>> round(t_quantile(0.975, 9), 6)
        2.262157
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability ({probability}) must be above 0 and below 1")
    low, high = -1.0, 1.0
    while t_cdf(low, degrees) > probability:
        low *= 2
    while t_cdf(high, degrees) < probability:
        high *= 2
    # Bisection to the last bit of a float.
    while low < (middle := (low + high) / 2) < high:
        if t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return middle


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function at ``x``, where ``y`` is an exact 1 - x."""
    if x == 0 or y == 0:
        return float(y == 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, y, x)
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_scale += a * math.log(x) + b * math.log(y)
    return math.exp(log_scale) / a * _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    d = 1 / (1 - (a + b) * x / (a + 1))
    c, value = 1.0, d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + even * d)
        c = 1 + even / c
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + odd * d)
        c = 1 + odd / c
        value *= d * c
        if abs(d * c - 1) < _TOLERANCE:
            break
    return value
