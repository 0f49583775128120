"""The one thing that is asked of a model that judges: which of a few words it would say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tools.tool import ToolFailure

Message = dict[str, str]
"""A chat message: its role and its content."""


class JudgeFailure(ToolFailure):
    """Raised when a judge gives no verdict. Never a reward."""


class Chooser(Protocol):
    """A model as a distribution over words: an endpoint, or a model in this process."""

    async def __call__(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        """How probable each option is as what the assistant says next; they add up to 1.

        Args:
            messages: the conversation so far.
            options: two words or more.

        Raises:
            JudgeFailure: there is no such number.
        """
        ...


def normalised(masses: Iterable[float]) -> list[float]:
    """Masses as probabilities; one of them must be above 0."""
    kept = list(masses)
    return [mass / sum(kept) for mass in kept]


def prefixes(options: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (longer, shorter) of options of which one begins with the other: "10" and "1"."""
    return [(a, b) for a in options for b in options if a != b and a.startswith(b)]
