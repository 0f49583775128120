"""Outputs of programs, as texts and with bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tools.sandbox import Verdict

_LARGE = 4096
"""Approximate memory in bytes up to which a value is kept whole."""
_SHOWN = 500
"""Number of characters to keep of the text of a value that takes more than ``_LARGE`` bytes."""
_OBJECT = 32
"""Approximate memory of one Python object in bytes, without its contents."""


@dataclass(frozen=True, slots=True)
class LargeValue:
    """The beginning of an output. It replaces an output that takes much memory."""

    head: str
    length: int
    """Length of the whole text in characters."""

    def __repr__(self) -> str:
        """The beginning and the length."""
        return f"{self.head}... ({self.length} characters)"


def without_large_values(verdict: Verdict) -> Verdict:
    """A verdict whose large outputs are cut to their beginning."""
    outcomes = tuple(
        replace(outcome, value=_cut(outcome.value))
        if _weight(outcome.value, _LARGE) > _LARGE
        else outcome
        for outcome in verdict.outcomes
    )
    return replace(verdict, outcomes=outcomes)


def text_of(value: object) -> str:
    """``repr`` of a value, also for integers that are too long for Python to print."""
    try:
        return repr(value)
    except ValueError:  # of more than 4300 digits, perhaps inside
        return "a number too long to show"


def _cut(value: object) -> LargeValue:
    text = text_of(value)
    return LargeValue(text[:_SHOWN], len(text))


def _weight(value: Any, enough: int) -> int:
    """Approximate memory of a value in bytes; counting stops soon after ``enough`` bytes."""
    match value:
        case str() | bytes():
            return _OBJECT + len(value)
        case int():
            return _OBJECT + value.bit_length() // 8
        case list() | tuple() | set() | frozenset():
            inside: Iterable[Any] = value
        case dict():
            inside = (one for pair in value.items() for one in pair)
        case _:
            return _OBJECT
    total = _OBJECT
    for one in inside:
        if total > enough:
            break
        total += _weight(one, enough - total)
    return total
