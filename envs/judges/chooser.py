"""The protocol of a judge model, which returns the probabilities of a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tools.tool import ToolFailure

Message = dict[str, str]
"""A chat message: its role and its content."""


class JudgeFailure(ToolFailure):
    """Raised when a judge gives no verdict. A failure is never a reward."""


class Chooser(Protocol):
    """A model as a distribution over words: an endpoint, or a model in this process."""

    async def __call__(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        """The probabilities of the options as the assistant's next words; they sum to 1.

        Args:
            messages: the conversation so far.
            options: two words or more.

        Raises:
            JudgeFailure: the model gives no probabilities.
        """
        ...


def normalised(masses: Iterable[float]) -> list[float]:
    """Probabilities in proportion to ``masses``, of which at least one must be above 0."""
    kept = list(masses)
    return [mass / sum(kept) for mass in kept]


def prefixes(options: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (longer, shorter) of options: the longer starts with the shorter, as 10 with 1."""
    return [(a, b) for a in options for b in options if a != b and a.startswith(b)]
