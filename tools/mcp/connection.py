"""One session with an MCP server, from its start to its end.

The task that enters one of the SDK's context managers must also leave it, so a separate task holds
them. Any task on the same event loop can use the session. Answers are the protocol's JSON.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TextIO

from tools.mcp.sdk import (
    STREAM_CLOSED,
    PaginatedRequestParams,
    ProtocolError,
    over_http,
    over_stdio,
    plain,
)
from tools.tool import ToolFailure

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Seconds to wait for a server's end when the session closes. The SDK kills the server after about
four seconds."""
PING_S = 5.0
"""Seconds within which a server that has closed its standard error must answer a ping."""
LAST_WORDS_S = 0.5
"""Seconds to wait, after a server's end, for the rest of its standard error."""
_KEPT = 2000
"""Number of bytes to keep from the end of a server's standard error."""
_GONE = (-32000, -32600, 32600)
"""Error codes by which the SDK reports that the connection or the server's session has ended."""
_INVALID_PARAMS = -32602


class ConnectionLost(Exception):
    """Raised by a request if the server ended before it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's address: a command that starts it, or a URL."""

    command: str = ""
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the command, in addition to HOME, PATH and a few harmless ones."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request to the URL."""

    def __post_init__(self) -> None:
        for name in ("command", "url"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} ({getattr(self, name)!r}) must be a text")
        if bool(self.command.strip()) == bool(self.url):
            raise ValueError(
                f"an MCP server needs a command ({self.command!r}) or a url ({self.url!r}): give "
                f"one of the two"
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url ({self.url!r}) must begin with http:// or https://")
        if self.url and self.env:
            raise ValueError("env is for a command: a url's server runs already")
        if self.command and self.headers:
            raise ValueError("headers are for a url: a command is asked over its standard input")

    def __str__(self) -> str:
        return f"MCP server {self.command or self.url!r}"


class Connection:
    """A session with the server at an address. Call ``start`` once and ``close`` once.

    Args:
        address: the server's address.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._session: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None
        self._errors = b""

    @property
    def lost(self) -> bool:
        """Whether the session is known to have ended, or has not started."""
        return self._closing.is_set() or self._holder is None or self._holder.done()

    async def start(self, limit_s: float) -> None:
        """Start the server if it is a command, and complete the handshake.

        Raises:
            ToolFailure: the server does not start, or does not answer within ``limit_s`` seconds.
        """
        self._holder = asyncio.create_task(self._hold())
        self._holder.add_done_callback(_seen)
        try:
            both: set[asyncio.Future[Any]] = {self._holder, self._session}
            await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not self._session.done():
                raise self._unstarted(self._holder, limit_s)
        finally:
            if not self._session.done():
                await self.close()

    async def tools(self) -> list[dict[str, Any]]:
        """List the server's tools, as ``tools/list`` returns them.

        Raises:
            ConnectionLost: the server ended.
            ToolFailure: the server answered with an error.
        """
        found: list[dict[str, Any]] = []
        params: Any = None
        while True:
            page = await self._answer(self._session.result().list_tools(params=params))
            found += page["tools"]
            if not page.get("nextCursor"):
                return found
            params = PaginatedRequestParams(cursor=page["nextCursor"])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool, and return the answer to ``tools/call``.

        Raises:
            ConnectionLost: the server ended before it answered.
            ToolFailure: the server answered with a protocol error other than "invalid params".
        """
        return await self._answer(self._session.result().call_tool(name, dict(arguments)))

    async def close(self) -> None:
        """End the session, and the server if a command started it. Closing twice is harmless."""
        self._closing.set()
        holder = self._holder
        if holder is None:
            return
        if not self._session.done():
            holder.cancel()
        _, running = await asyncio.wait({holder}, timeout=CLOSE_S)
        if running:
            logger.warning("%s did not end within %g s", self._address, CLOSE_S)
            holder.cancel()

    def last_error(self) -> str:
        """The server's last line on standard error, formatted for the end of a message, or ""."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _unstarted(self, holder: asyncio.Task[None], limit_s: float) -> ToolFailure:
        """The exception to raise because the session did not start."""
        if not holder.done():
            late = f"{self._address} did not answer within {limit_s:g} s{self.last_error()}"
            return ToolFailure(late, retryable=True)
        error = None if holder.cancelled() else holder.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        why = f"{self.last_error()} ({type(error).__name__}: {error})"
        if self._address.url:
            return ToolFailure(f"{self._address} cannot be reached{why}", retryable=True)
        return ToolFailure(f"{self._address} does not start{why}", retryable=False)

    # ---- the task that holds it ------------------------------------------------------------

    async def _hold(self) -> None:
        """Open the connection, set ``_session``, and close both when ``_closing`` is set."""
        address = self._address
        try:
            async with AsyncExitStack() as stack:
                if address.url:
                    opened = over_http(address.url, address.headers)
                    session = await stack.enter_async_context(opened)
                else:
                    errors = stack.enter_context(await self._listen(stack))
                    opened = over_stdio(shlex.split(address.command), address.env, errors)
                    session = await stack.enter_async_context(opened)
                    errors.close()  # The server has a copy; end-of-file needs ours closed.
                await session.initialize()
                self._session.set_result(session)
                await self._closing.wait()
        # The SDK may raise anything when a server exits; callers get ConnectionLost.
        except Exception as error:
            if not self._session.done():
                raise
            logger.debug("%s ended by %r", address, error)
        finally:
            self._closing.set()

    async def _listen(self, stack: AsyncExitStack) -> TextIO:
        """Open a pipe for the server's standard error and return its writing end.

        When the pipe closes and the server answers no ping, the session has ended.
        """
        readable, writable = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb")
        )

        async def listen() -> None:
            try:
                while heard := await reader.read(4096):
                    self._errors = (self._errors + heard)[-_KEPT:]
                if self._session.done() and not self._closing.is_set():
                    async with asyncio.timeout(PING_S):
                        await self._session.result().send_ping()
            # No answer, whatever the SDK makes of that.
            except Exception as error:
                logger.debug("%s has ended: %r", self._address, error)
                self._closing.set()
            finally:
                transport.close()

        listener = asyncio.create_task(listen())

        async def finish() -> None:
            # What a server wrote last says why it ended.
            await asyncio.wait({listener}, timeout=LAST_WORDS_S)
            listener.cancel()

        stack.push_async_callback(finish)
        return os.fdopen(writable, "w")

    # ---- requests --------------------------------------------------------------------------

    async def _answer(self, request: Awaitable[Any]) -> dict[str, Any]:
        """Await a request's answer and return it as JSON. Stop waiting if the session ends."""
        assert self._holder is not None
        asked = asyncio.ensure_future(request)
        asked.add_done_callback(_seen)
        try:
            both: set[asyncio.Future[Any]] = {asked, self._holder}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() or asked.cancelled():
                raise ConnectionLost
            return plain(asked.result())
        except ProtocolError as error:
            code, message = error.error.code, error.error.message
            if code in _GONE:
                self._closing.set()
                raise ConnectionLost from error
            if code == _INVALID_PARAMS:
                return {"content": [{"type": "text", "text": message}], "isError": True}
            raise ToolFailure(f"{self._address}: {message} ({code})", retryable=False) from error
        except STREAM_CLOSED as error:
            self._closing.set()
            raise ConnectionLost from error
        # The response violates the server's own schemas.
        except (RuntimeError, ValueError) as error:
            raise ToolFailure(f"{self._address}: {error}", retryable=False) from error
        finally:
            asked.cancel()


def _seen(task: asyncio.Future[Any]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
