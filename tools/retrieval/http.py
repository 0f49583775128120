"""The client of a retriever that another machine or process serves over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from tools.retrieval.passage import Passage
from tools.retrieval.wire import WIRES
from tools.tool import ToolFailure

CONNECT_S = 5.0
"""Time limit in seconds for connecting to the server."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Seconds of the first and of the longest wait between attempts. Each wait is lengthened by a
random share of 0 to 100%."""
_SPARED = (408, 425, 429)
"""HTTP statuses below 500 after which a request is retried."""
_SHOWN = 200
"""Number of characters that error messages quote from a server's refusal."""


class HttpRetriever:
    """Queries a server in one of three wire formats, over shared connections.

    Requests to a server that is overloaded or does not answer are retried until the deadline. Close
    the retriever, or use it as an asynchronous context manager.

    Args:
        url: ``http://host:port``, with or without the format's path.
        wire: "search-r1", "re-search" or "r1-searcher"; see ``tools.retrieval.wire``.
        timeout_s: time limit in seconds for one search, including retries.
        max_connections: maximum number of connections. A search that needs a further connection
            waits.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        wire: str = "search-r1",
        timeout_s: float = 30.0,
        max_connections: int = 256,
    ) -> None:
        if wire not in WIRES:
            raise ValueError(f"wire ({wire!r}) must be one of {', '.join(WIRES)}")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url ({url!r}) must begin with http:// or https://")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s ({timeout_s}) must be > 0")
        if max_connections < 1:
            raise ValueError(f"max_connections ({max_connections}) must be >= 1")
        self._wire = WIRES[wire]
        self._url = url.rstrip("/").removesuffix(self._wire.path) + self._wire.path
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        # Unseeded jitter: many clients of one server must not retry at the same moments.
        self._jitter = random.Random()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is harmless."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query, best first, as the server orders them.

        ``Passage.score`` is the server's score, or 0 if the wire format has no scores.

        Raises:
            ToolFailure: there was no answer before the deadline (retryable), or the answer has
                another format.
            ValueError: ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be >= 1")
        if not queries:
            return []
        body = await self._persist(self._wire.ask(queries, k))
        try:
            found = self._wire.read(body)
        except (LookupError, TypeError, ValueError) as error:
            raise self._wrong_format(error) from error
        if len(found) != len(queries):
            raise self._wrong_format(f"{len(found)} results for {len(queries)} queries")
        return [passages[:k] for passages in found]

    async def _persist(self, request: Any) -> Any:
        """Send a request, with retries until the deadline, and return the answer."""
        last = "no answer yet"
        timer = asyncio.timeout(self._timeout_s)
        wait = FIRST_WAIT_S
        try:
            async with timer:
                while True:
                    try:
                        return await self._attempt(request)
                    except _NotNow as error:
                        last = str(error)
                    await asyncio.sleep(wait * (1 + self._jitter.random()))
                    wait = min(2 * wait, LONGEST_WAIT_S)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise ToolFailure(
                f"the retriever at {self._url} did not answer within timeout_s "
                f"({self._timeout_s:g} s): {last}",
                retryable=True,
            ) from error

    async def _attempt(self, request: Any) -> Any:
        session = self._open()
        try:
            async with session.post(self._url, json=request) as response:
                if response.status >= 500 or response.status in _SPARED:
                    raise _NotNow(f"status {response.status}")
                if response.status != 200:
                    said = (await response.text(errors="replace"))[:_SHOWN]
                    raise ToolFailure(
                        f"the retriever at {self._url} refuses (status {response.status}): {said}",
                        retryable=False,
                    )
                return await response.json(content_type=None)
        except (aiohttp.ClientError, OSError) as error:
            raise _NotNow(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise self._wrong_format(error) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections),
                # The deadline is ours; TimeoutError is for it alone.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            )
        return self._session

    def _wrong_format(self, problem: object) -> ToolFailure:
        return ToolFailure(
            f"the retriever at {self._url} does not answer in the format {self._wire.name!r} "
            f"({problem}): choose another wire",
            retryable=False,
        )


class _NotNow(Exception):
    """Raised when an attempt failed but another attempt can succeed."""
