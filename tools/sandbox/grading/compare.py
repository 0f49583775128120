"""Compares returned values and printed output with the expected ones, on the host."""

from __future__ import annotations

import math
from typing import Any


def equal(got: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Whether ``got`` equals ``expected``, except that numbers can differ by ``tolerance``.

    The tolerance is absolute or relative, whichever allows more. An expected NaN matches a NaN.
    """
    if tolerance is None:
        if got == expected or not _has_nan(expected):
            return bool(got == expected)
        tolerance = 0.0
    if isinstance(expected, int | float | complex) and not isinstance(expected, bool):
        return _close(got, expected, tolerance)
    if isinstance(expected, list | tuple):
        return (
            type(got) is type(expected)
            and len(got) == len(expected)
            and all(equal(g, e, tolerance) for g, e in zip(got, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(equal(got[key], value, tolerance) for key, value in expected.items())
        )
    return bool(got == expected)


def _has_nan(expected: Any) -> bool:
    if isinstance(expected, list | tuple):
        return any(map(_has_nan, expected))
    if isinstance(expected, dict):
        return any(map(_has_nan, expected.values()))
    return isinstance(expected, float | complex) and expected != expected


def _close(got: Any, expected: complex, tolerance: float) -> bool:
    if not isinstance(got, int | float | complex) or isinstance(got, bool):
        return False
    if expected != expected:
        return bool(got != got)
    if got == expected:
        return True
    try:
        difference, scale = abs(got - expected), max(abs(got), abs(expected))
        # False for a NaN and for infinities of opposite signs.
        return math.isfinite(scale) and difference <= tolerance * max(1.0, scale)
    except OverflowError:  # an integer beyond the range of floats
        return False


def same_output(got: str, expected: str) -> bool:
    """Whether outputs are equal without white space at line ends and empty lines at the end."""
    got, expected = got.rstrip(), expected.rstrip()
    # A submission may print a million lines: they are split only if there are as many as expected.
    return got.count("\n") == expected.count("\n") and _lines(got) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n")]
