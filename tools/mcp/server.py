"""An MCP server's tools. All episodes share one connection, or each episode has its own."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tools.limits import CallLimits
from tools.mcp.connection import Address, Connection, ConnectionLost
from tools.mcp.tool import McpTool
from tools.tool import ToolFailure

MOST_RESTARTS, WINDOW_S = 5, 60.0
"""Maximum number of restarts of a server that exited, within a window of this many seconds."""
_SHARED = ""
"""Key in ``_connections`` of the connection that all episodes share."""


class McpServer:
    """An MCP server with its connections, used on one event loop.

    Use ``async with``, or call ``open`` and ``close``.

    Args:
        address: a command or a URL.
        max_sessions: maximum number of connections. With 0, all episodes share one connection,
            which suits servers that keep no state between calls. Otherwise each episode
            (``ToolContext.session``) has its own connection, from the episode's first call to its
            end; a command is then started once per connection.
        timeout_s: time limit in seconds for one call, and for the server's start.
        retries: maximum number of further attempts after a timeout or the server's exit.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        address: Address,
        *,
        max_sessions: int = 0,
        timeout_s: float = 60.0,
        retries: int = 0,
    ) -> None:
        if max_sessions < 0:
            raise ValueError(f"max_sessions ({max_sessions}) must be >= 0")
        self.address = address
        self.limits = CallLimits(timeout_s=timeout_s, retries=retries)
        self.per_episode = max_sessions > 0
        self.listed: Mapping[str, Mapping[str, Any]] = {}
        """The entries of the newest result of ``tools/list``, by tool name."""
        self._max_sessions = max_sessions
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(0)
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        """Connections by episode, or only the shared connection under the key ``_SHARED``."""
        self._restarts: deque[float] = deque(maxlen=MOST_RESTARTS)
        self._nameless = itertools.count()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and list the tools. Opening twice is harmless.

        Raises:
            ToolFailure: the server does not start, or does not answer in time.
        """
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(self._max_sessions)
        try:
            if not self.per_episode:
                await self._ask(await self._connection(_SHARED))
            elif not self.listed:
                await self.list_tools()
        except BaseException:
            await self.close()
            raise

    @property
    def tools(self) -> dict[str, McpTool]:
        """The server's tools by name; empty before ``open``.

        The tools share the server's connections.
        """
        return {name: McpTool(self, listed) for name, listed in self.listed.items()}

    async def list_tools(self) -> None:
        """Update ``listed`` over a temporary connection.

        Raises:
            ToolFailure: the server does not start, or does not answer in time.
        """
        connection = await self._connect()
        try:
            await self._ask(connection)
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close all connections, and end servers that a command started.

        Closing twice is harmless.
        """
        self._loop = None
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(self._end(opening) for opening in connections.values()))

    async def call(self, tool: str, arguments: Mapping[str, Any], session: str) -> dict[str, Any]:
        """Make one attempt of a call, and return the server's response.

        Raises:
            ToolFailure: the server exited, does not start, or is not open.
        """
        key = _SHARED
        if self.per_episode:
            key = session or f"call {next(self._nameless)}"
        try:
            connection = await self._connection(key)
            try:
                return await connection.call(tool, arguments)
            except ConnectionLost as error:
                raise self._ended(connection, "ended during a call") from error
        finally:
            if self.per_episode and not session:
                await self.end(key)

    async def end(self, session: str) -> None:
        """Close the episode's own connection. Do nothing if the episode has none."""
        if self.per_episode and session in self._connections:
            await self._end(self._connections.pop(session))

    def keeps(self, session: str) -> bool:
        """Whether the episode ``session`` has a connection of its own."""
        return self.per_episode and session in self._connections

    # ---- connections -----------------------------------------------------------------------

    async def _connection(self, key: str) -> Connection:
        """The open connection for ``key``: an episode, or ``_SHARED``. Connect if there is none."""
        if self._loop is not asyncio.get_running_loop():
            state = (
                "is not open: await open() first"
                if self._loop is None
                else ("was opened on another event loop: open it where it is called")
            )
            raise ToolFailure(f"{self.address} {state}", retryable=False)
        opening = self._connections.get(key)
        if opening is not None and opening.done():
            connection = None if opening.cancelled() or opening.exception() else opening.result()
            if connection is not None and not connection.lost:
                return connection
            if connection is not None and self.per_episode:
                raise self._ended(connection, "has ended, and with it the episode's state")
            if not self.per_episode:
                self._count_restart(connection)
            del self._connections[key]
            opening = None
        if opening is None:
            opening = asyncio.create_task(self._begin())
            self._connections[key] = opening
        # Shielded: a cancelled caller must not cancel the connection of others.
        return await asyncio.shield(opening)

    async def _begin(self) -> Connection:
        if not self.per_episode:
            return await self._connect()
        await self._places.acquire()
        try:
            return await self._connect()
        except BaseException:
            self._places.release()
            raise

    async def _connect(self) -> Connection:
        connection = Connection(self.address)
        await connection.start(self._timeout_s)
        return connection

    async def _end(self, opening: asyncio.Task[Connection]) -> None:
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        if opening.cancelled() or opening.exception() is not None:
            return
        try:
            await opening.result().close()
        finally:
            if self.per_episode:
                self._places.release()

    async def _ask(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                listed = await connection.tools()
        except ConnectionLost as error:
            raise self._ended(connection, "ended when asked for its tools") from error
        except TimeoutError as error:
            raise ToolFailure(
                f"{self.address} did not list its tools within {self._timeout_s:g} s",
                retryable=True,
            ) from error
        self.listed = {one["name"]: one for one in listed}

    def _count_restart(self, connection: Connection | None) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._restarts) == MOST_RESTARTS and now - self._restarts[0] < WINDOW_S:
            raise self._ended(
                connection, f"was started {MOST_RESTARTS} times in the last {WINDOW_S:g} s"
            )
        self._restarts.append(now)

    def _ended(self, connection: Connection | None, what: str) -> ToolFailure:
        last_error = connection.last_error() if connection is not None else ""
        return ToolFailure(f"{self.address} {what}{last_error}", retryable=True)
