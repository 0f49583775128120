"""Passages, and the protocol of retrievers, which find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text from a page with a title."""

    id: str
    text: str
    title: str = ""
    """Title of the page. It is searched together with the text, so words in the title count twice
    if the text repeats them."""
    score: float = 0.0
    """How well the passage matches the query; higher is better. 0 outside of results."""


class Retriever(Protocol):
    """Finds passages. Every backend implements this protocol."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` matching passages for each query, best first.

        Raises:
            ToolFailure: the backend cannot answer.
            ValueError: ``k`` is less than 1.
        """
        ...
