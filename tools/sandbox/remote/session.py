"""A session on a server, with the interface of a local session."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tools.sandbox.entering import Closed, Started
from tools.sandbox.errors import SandboxFailure, SessionOver
from tools.sandbox.limits import Limits
from tools.sandbox.remote import wire
from tools.sandbox.remote.connection import Connection, ConnectionLost
from tools.sandbox.remote.transport import Transport
from tools.sandbox.results import CallResult

_NO_INTERPRETER = (
    "the session is over ({why}): `await session.restart()` starts another, without its variables "
    "and files"
)


class RemoteSnapshot(Closed):
    """Frozen state of a session on the server. See ``tools.sandbox.Snapshot``."""

    def __init__(self, transport: Transport, connection: Connection, number: int) -> None:
        self._transport = transport
        self.connection = connection
        self.number = number

    async def close(self) -> None:
        """End the snapshot's process. Closing twice is harmless."""
        await end(self._transport, self.connection, {"op": "drop", "snapshot": self.number})


async def end(transport: Transport, connection: Connection, message: wire.Data) -> None:
    """Ask the server to close a session or snapshot. Do nothing if the connection is lost."""
    if connection.closed:
        return
    try:
        await transport.ask(connection, message)
    except ConnectionLost:
        return


class RemoteSession(Started):
    """A Python interpreter on a server; ``tools.sandbox.Session`` describes the methods.

    The session is over when the connection to the server is lost.
    """

    def __init__(
        self,
        transport: Transport,
        files: dict[str, str | bytes],
        limits: Limits,
        idle_s: float,
        life_s: float,
    ) -> None:
        self._transport = transport
        self._files = files
        self._limits = limits
        self._idle_s = idle_s
        self._life_s = life_s
        self._connection: Connection | None = None
        self._number = 0
        self._ended = False
        self._lock = asyncio.Lock()
        self._end_reason = "it was not started: use `async with`"

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``, as of the server's last answer."""
        return self._connection is None or self._connection.closed or self._ended

    async def start(self) -> None:
        """Start the interpreter. Does nothing if it is running.

        Raises:
            SandboxFailure: the sandbox failed twice, or no session permit became free in time.
        """
        async with self._lock:
            if self.over:
                await self._start()

    async def restart(self) -> None:
        """End the interpreter, if any, and start a new one without variables or files.

        Raises:
            SandboxFailure: as ``start``.
        """
        async with self._lock:
            await self._close()
            await self._start()

    async def _start(self) -> None:
        settings = {
            "files": self._files,
            "limits": wire.fields_of(self._limits),
            "idle_s": self._idle_s,
            "life_s": self._life_s,
        }
        for last_try in (False, True):
            try:
                connection = await self._transport.connection()
                name = connection.number()
                message = {"op": "start", "session": name, "settings": settings}
                await self._create(connection, message, {"op": "close", "session": name})
            except ConnectionLost as error:
                if last_try:
                    raise self._transport.failure(str(error)) from None
                self._transport.retries += 1
                continue
            self._connection, self._number, self._ended = connection, name, False
            return

    async def _create(
        self, connection: Connection, message: wire.Data, undo: wire.Data
    ) -> wire.Data:
        """Ask the server to create a session or snapshot.

        If cancelled, send the message ``undo``.
        """
        try:
            return await self._transport.ask(connection, message)
        except asyncio.CancelledError:
            connection.notify(
                {**undo, "number": connection.number(), "owner": self._transport.owner}
            )
            raise

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code in the interpreter and return its output, value or traceback.

        Raises:
            SessionOver: the interpreter had ended; ``restart`` starts another.
            SandboxFailure: the sandbox failed; the session is over.
            ValueError: ``wall_s`` is outside the range of ``Limits.wall_s``.
        """
        limits = self._limits if wall_s is None else replace(self._limits, wall_s=wall_s)
        message = {"op": "run", "code": code, "wall_s": wall_s}
        async with self._lock, self._transport.permits:
            return wire.read_call((await self._ask(message, limits.wall_s))["result"])

    async def fork(self) -> RemoteSession:
        """Make a second session that continues from this session's current state.

        Raises the errors of ``Session.fork``.
        """
        async with self._lock, self._transport.permits:
            connection = self._open_connection()
            twin = RemoteSession(
                self._transport, self._files, self._limits, self._idle_s, self._life_s
            )
            name = connection.number()
            await self._copy({"op": "fork", "twin": name}, {"op": "close", "session": name})
            twin._connection, twin._number = connection, name
            return twin

    async def snapshot(self) -> RemoteSnapshot:
        """Make a snapshot of the current state, for ``restore``. Raises the errors of ``fork``."""
        async with self._lock, self._transport.permits:
            connection = self._open_connection()
            name = connection.number()
            await self._copy({"op": "snapshot", "snapshot": name}, {"op": "drop", "snapshot": name})
            return RemoteSnapshot(self._transport, connection, name)

    async def restore(self, snapshot: RemoteSnapshot) -> None:
        """Continue from a snapshot, even if this session has ended.

        Raises the errors of ``fork``.
        """
        async with self._lock, self._transport.permits:
            if snapshot.connection.closed:
                raise SessionOver("there is nothing to restore: the connection was lost")
            if self._connection is not snapshot.connection:
                await self._close()
                await self._start()
            await self._ask({"op": "restore", "snapshot": snapshot.number})

    async def close(self) -> None:
        """End the interpreter and every process that it started. Closing twice is harmless."""
        self._end_reason = "it was closed"
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await end(self._transport, connection, {"op": "close", "session": self._number})

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise SessionOver(_NO_INTERPRETER.format(why=self._end_reason))
        if self._connection.closed:
            raise SessionOver(_NO_INTERPRETER.format(why="the connection to the server was lost"))
        return self._connection

    async def _copy(self, message: wire.Data, undo: wire.Data) -> None:
        connection = self._open_connection()
        try:
            await self._create(connection, {**message, "session": self._number}, undo)
        except ConnectionLost as error:
            raise self._lost(error) from None

    async def _ask(self, message: wire.Data, wait_s: float = 0.0) -> wire.Data:
        try:
            answer = await self._transport.ask(
                self._open_connection(), {**message, "session": self._number}, wait_s
            )
        except SessionOver:
            self._ended = True
            raise
        except ConnectionLost as error:
            raise self._lost(error) from None
        self._ended = answer["over"]
        return answer

    def _lost(self, error: ConnectionLost) -> SandboxFailure:
        return self._transport.failure(f"{error}; the session's state is lost")
