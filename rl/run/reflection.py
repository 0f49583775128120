"""Whether a text looks back at itself in so many words, and how often that helps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PHRASES = ("wait,", "recheck", "retry", "alternatively,", "however,")
"""The reflection patterns that the code of Open-Reasoner-Zero (arXiv 2503.24290) counts."""
_PHRASE = re.compile("|".join(rf"\b{re.escape(phrase)}" for phrase in PHRASES), re.IGNORECASE)


def reflects(text: str) -> bool:
    """Whether one of :data:`PHRASES` stands in the text, at the beginning of a word.

    Explicit reflection only: of a chain that corrects itself without a word of it nothing is known.
    Rethinking Reflection in Pre-Training (arXiv 2504.04022) asks a model in the place of a list.
    """
    return _PHRASE.search(text) is not None


@dataclass(frozen=True, slots=True)
class ReflectionRates:
    """Shares of all items, as in Rethinking Reflection in Pre-Training (arXiv 2504.04022)."""

    accuracy: float
    """The answer is right in the end."""
    explicit_rate: float
    """The model says that it reflects."""
    explicit_accuracy: float
    """Both."""
    implicit_accuracy: float
    """It is right and did not say so; with ``explicit_accuracy`` it adds up to accuracy."""


def reflection_rates(correct: Sequence[bool], explicit: Sequence[bool]) -> ReflectionRates:
    """The rates of some items.

    Args:
        correct: of each item, whether the answer is right.
        explicit: of each item, whether the text says so, as :func:`reflects` tells it.

    Raises:
        ValueError: there is no item, or the lengths differ.
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
        explicit_accuracy=sum(right and said for right, said in pairs) / count,
        implicit_accuracy=sum(right and not said for right, said in pairs) / count,
    )
