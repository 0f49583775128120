"""Explicit reflection in answers: detects it, and computes its rates besides accuracy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PHRASES = ("wait,", "recheck", "retry", "alternatively,", "however,")
"""The reflection patterns in the code of Open-Reasoner-Zero (arXiv 2503.24290)."""
_PHRASE = re.compile("|".join(rf"\b{re.escape(phrase)}" for phrase in PHRASES), re.IGNORECASE)


def reflects(text: str) -> bool:
    """Whether the text contains one of :data:`PHRASES` at the start of a word.

    This detects explicit reflection only, not a chain of thought that corrects itself without
    saying so. Rethinking Reflection in Pre-Training (arXiv 2504.04022) asks a model instead of
    using a list.
    """
    return _PHRASE.search(text) is not None


@dataclass(frozen=True, slots=True)
class ReflectionRates:
    """Rates as shares of all items (Rethinking Reflection in Pre-Training, arXiv 2504.04022)."""

    accuracy: float
    """Share of right answers."""
    explicit_rate: float
    """Share of texts with explicit reflection."""
    explicit_accuracy: float
    """Share of right answers with explicit reflection."""
    implicit_accuracy: float
    """Share of right answers without explicit reflection. Together with ``explicit_accuracy`` it
    adds up to ``accuracy``."""


def reflection_rates(correct: Sequence[bool], explicit: Sequence[bool]) -> ReflectionRates:
    """The rates over some answers.

    Args:
        correct: whether each answer is right.
        explicit: whether each answer reflects explicitly, see :func:`reflects`.

    Raises:
        ValueError: there are no answers, or the lengths differ.
    """
    if not correct or len(correct) != len(explicit):
        raise ValueError(
            f"{len(correct)} answers and {len(explicit)} texts: give one of each, at least one"
        )
    pairs = list(zip(correct, explicit, strict=True))
    count = len(pairs)
    return ReflectionRates(
        accuracy=sum(map(bool, correct)) / count,
        explicit_rate=sum(map(bool, explicit)) / count,
        explicit_accuracy=sum(right and stated for right, stated in pairs) / count,
        implicit_accuracy=sum(right and not stated for right, stated in pairs) / count,
    )
