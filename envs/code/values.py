"""What programs answered, as text and in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tools.sandbox import Verdict

_LARGE = 4096
"""Bytes, about, of a value that is kept as it is."""
_SHOWN = 500
"""Characters that are kept of the text of a larger one."""
_OBJECT = 32
"""Bytes, about, of any object."""


@dataclass(frozen=True, slots=True)
class LargeValue:
    """In place of an answer that takes much memory: how it begins."""

    head: str
    length: int
    """Characters of the whole text."""

    def __repr__(self) -> str:
        """The head, and how much there is."""
        return f"{self.head}... ({self.length} characters)"


def without_large_values(verdict: Verdict) -> Verdict:
    """The same verdict, with large answers cut to how they begin."""
    outcomes = tuple(
        replace(outcome, value=_cut(outcome.value))
        if _weight(outcome.value, _LARGE) > _LARGE
        else outcome
        for outcome in verdict.outcomes
    )
    return replace(verdict, outcomes=outcomes)


def text_of(value: object) -> str:
    """``repr``, also of an integer that Python refuses to print in full."""
    try:
        return repr(value)
    except ValueError:  # of more than 4300 digits, perhaps inside
        return "a number too long to show"


def _cut(value: object) -> LargeValue:
    text = text_of(value)
    return LargeValue(text[:_SHOWN], len(text))


def _weight(value: Any, enough: int) -> int:
    """Bytes of memory, about; counted no further than ``enough``."""
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
