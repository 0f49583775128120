"""What a search finds, and what a thing that searches must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text, of a page with a title."""

    id: str
    text: str
    title: str = ""
    """Searched together with the text, so that a page's subject counts twice where it is named."""
    score: float = 0.0
    """How well it matches the query it was found for; 0 outside of results. Higher is better."""


class Retriever(Protocol):
    """Finds passages. Every backend answers this and nothing else."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query, best first; none that does not match at all.

        Raises:
            ToolFailure: the backend cannot answer.
            ValueError: ``k`` is less than 1.
        """
        ...
