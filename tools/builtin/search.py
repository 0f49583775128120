"""The ``search`` tool: passages from a retriever, as text for a model."""

from __future__ import annotations

from dataclasses import asdict, replace

from tools.function import tool
from tools.retrieval import Retriever
from tools.retrieval.corpus import contents_of
from tools.tool import BadArguments, Tool, ToolResult

NOTHING_FOUND = "Nothing was found."


def search_tool(retriever: Retriever, top_n: int = 5, *, titles: bool = True) -> Tool:
    """Make a tool that shows the ``top_n`` best passages for a query, best first.

    Each passage has its quoted title on one line and its text on the next line. A blank line
    separates passages. ReSearch has the same format
    (src/verl/workers/rollout/vllm_rollout/vllm_rollout.py of its branch re-search, with the
    "contents" of wiki-18).

    Args:
        retriever: the retriever to search.
        top_n: number of passages to show.
        titles: whether to show titles. Use False if every text already begins with its title.

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
        if not titles:
            passages = [replace(passage, title="") for passage in passages]
        text = "\n\n".join(contents_of(passage) for passage in passages)
        return ToolResult(text or NOTHING_FOUND, data=[asdict(passage) for passage in passages])

    return search
