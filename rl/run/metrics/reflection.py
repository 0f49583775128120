"""Detects explicit reflection in answers, and computes its rates and the accuracy."""

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
    saying so. Rethinking Reflection in Pre-Training (arXiv 2504.04022) asks a model to detect
    reflection.
    """
    return _PHRASE.search(text) is not None


@dataclass(frozen=True, slots=True)
class ReflectionRates:
    """How often answers reflect and are right, as shares of all answers (arXiv 2504.04022)."""

    accuracy: float
    """Share of answers that are right."""
    explicit_rate: float
    """Share of answers that reflect explicitly."""
    explicit_accuracy: float
    """Share of answers that are right and reflect explicitly."""
    implicit_accuracy: float
    """Share of answers that are right and do not reflect explicitly. ``explicit_accuracy`` and
    ``implicit_accuracy`` add up to ``accuracy``."""


def reflection_rates(correct: Sequence[bool], explicit: Sequence[bool]) -> ReflectionRates:
    """The rates of explicit reflection and of right answers.

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
