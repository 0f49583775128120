"""The ``search`` tool: passages from a retriever, as text for a model to read."""

from __future__ import annotations

from dataclasses import asdict

from tools.function import tool
from tools.retrieval import Retriever
from tools.tool import BadArguments, Tool, ToolResult

NOTHING_FOUND = "Nothing was found."


def search_tool(retriever: Retriever, top_n: int = 5) -> Tool:
    """A tool that shows the ``top_n`` best passages for a query, one to a line, best first.

    Raises:
        ValueError: ``top_n`` is less than 1.
    """
    if top_n < 1:
        raise ValueError(f"top_n ({top_n}) must be >= 1")

    @tool
    async def search(query: str) -> ToolResult:
        """Search a library of passages.

        Args:
            query: What to look for: names and words that the passage should have.
        """
        if not query.strip():
            raise BadArguments("the query is empty")
        [passages] = await retriever.search([query], top_n)
        text = "\n".join(passage.text for passage in passages)
        return ToolResult(text or NOTHING_FOUND, data=[asdict(passage) for passage in passages])

    return search
