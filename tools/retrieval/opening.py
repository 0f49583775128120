"""Opens a retriever: a server at an address, or an index in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tools.retrieval import dense
from tools.retrieval.bm25 import BM25
from tools.retrieval.http import HttpRetriever
from tools.retrieval.passage import Retriever


@asynccontextmanager
async def open_retriever(
    where: str, *, wire: str = "search-r1", timeout_s: float = 30.0
) -> AsyncIterator[Retriever]:
    """Open the retriever at ``where``. Connections to a server close when the context ends.

    Args:
        where: ``http://host:port``, or the folder of an index (``bm25`` or ``dense``).
        wire: the wire format of a server.
        timeout_s: time limit in seconds for one search on a server.

    Raises:
        ValueError: there is no index, or the address or the format is invalid.
    """
    if where.startswith(("http://", "https://")):
        async with HttpRetriever(where, wire=wire, timeout_s=timeout_s) as remote:
            yield remote
    elif (Path(where).expanduser() / dense.DONE).is_file():
        yield await asyncio.to_thread(dense.Dense, where)
    else:
        yield await asyncio.to_thread(BM25, where)
