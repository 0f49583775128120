"""Defines passages, and the protocol of retrievers, which find passages."""

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
    """Title of the page. Backends search the title together with the text, so a word of the title
    that the text repeats counts twice."""
    score: float = 0.0
    """How well the passage matches the query; higher is better. 0 if the passage is not a search
    result."""


class Retriever(Protocol):
    """Finds passages. Every backend implements this protocol."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` matching passages for each query, best first.

        Raises:
            ToolFailure: the backend cannot answer.
            ValueError: ``k`` is less than 1.
        """
        ...
