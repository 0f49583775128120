"""Compares returned values and printed output with the expected ones, on the host.

Under the rules of data sets, a value compares as JSON would write it. In printed output, white
space between words and empty lines do not count, and numbers compare by value:

- "apps": if every word is a number. Two integers without a sign must be the same text, and signed
  ones the same integer. Other numbers may differ by 1e-8 + 1e-5 of the expected one, as by
  ``np.allclose``. A value may also be the only element of the expected list.
- "livecodebench": if all words of the line are numbers, which must be exactly equal.

The graders of APPS and verl disagree on order (APPS takes the lines and their words as sets), on
three decimals (APPS rounds to them) and on long integers (APPS compares them as floats). Here an
answer passes only if it is right by value and in order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from tools.sandbox.grading.cases import APPS, EXACT, LIVECODEBENCH

_NON_BLANK_LINE = re.compile(r"\S.*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_KEY_BITS = 64
"""Integer keys up to this size count as texts, as JSON writes them."""


def equal_by(rules: str, got: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Whether ``got`` equals ``expected`` by one of ``RULES``; see :func:`equal`."""
    if rules == EXACT:
        return equal(got, expected, tolerance)
    got, expected = _as_json(got), _as_json(expected)
    wrapped = rules == APPS and isinstance(expected, list) and len(expected) == 1
    return equal(got, expected, tolerance) or (wrapped and equal(got, expected[0], tolerance))


def _as_json(value: Any) -> Any:
    """``value`` with lists for tuples, and texts for the integers among the keys of dicts."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        found = {_as_key(key): _as_json(item) for key, item in value.items()}
        return found if len(found) == len(value) else value
    return value


def _as_key(key: Any) -> Any:
    return str(key) if type(key) is int and key.bit_length() <= _KEY_BITS else key


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


def same_output(got: str, expected: str, rules: str = EXACT) -> bool:
    """Whether outputs are equal by one of ``RULES``.

    By "exact", they are equal without white space at line ends and empty lines at the end.
    """
    got, expected = got.rstrip(), expected.rstrip()
    if rules != EXACT:
        return got == expected or _same_words(got, expected, rules)
    # A submission may print a million lines: they are split only if there are as many as expected.
    return got.count("\n") == expected.count("\n") and _lines(got) == _lines(expected)


def _same_words(got: str, expected: str, rules: str) -> bool:
    same_texts = same_numbers = True
    for line, right in zip_longest(_non_blank(got), _non_blank(expected), fillvalue=""):
        wanted = right.split()
        # A submission may print a million words: no more are split off than can be right.
        words = line.split(None, len(wanted))
        if len(words) != len(wanted):
            return False
        if rules == LIVECODEBENCH:
            same_texts = same_numbers = True  # each line alone
        same_texts = same_texts and words == wanted
        close = _exactly if rules == LIVECODEBENCH else _nearly
        same_numbers = same_numbers and all(map(close, words, wanted))
        if not (same_texts or same_numbers):
            return False
    return True


def _non_blank(text: str) -> Iterator[str]:
    return (line.group() for line in _NON_BLANK_LINE.finditer(text))


def _nearly(word: str, right: str) -> bool:
    """Whether two words are numbers that APPS and verl both take as equal."""
    if word.isdigit() and right.isdigit():
        return word == right
    if _INTEGER.fullmatch(word) and _INTEGER.fullmatch(right):
        return _exactly(word, right)
    try:
        got, expected = float(word), float(right)
    except ValueError:
        return False
    near = abs(got - expected) <= 1e-8 + 1e-5 * abs(expected)
    return got == expected or (math.isfinite(expected) and near)


def _exactly(word: str, right: str) -> bool:
    """Whether two words are numbers of the same value."""
    try:
        return Decimal(word) == Decimal(right)
    except InvalidOperation:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n")]
