"""A session that a server hosts, with the interface of one of this machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tools.sandbox.errors import SandboxFailure, SessionOver
from tools.sandbox.limits import Limits
from tools.sandbox.remote import wire
from tools.sandbox.remote.line import Line, LineLost
from tools.sandbox.results import CallResult

if TYPE_CHECKING:
    from tools.sandbox.remote.client import RemoteSandbox

_NO_INTERPRETER = (
    "the session is over ({why}): `await session.restart()` starts another, without its variables "
    "and files"
)


class RemoteSnapshot:
    """A session's state, frozen, on the server. See ``tools.sandbox.Snapshot``."""

    def __init__(self, sandbox: RemoteSandbox, line: Line, number: int) -> None:
        self._sandbox = sandbox
        self.line = line
        self.number = number

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Give its process back. Closing twice is harmless."""
        await end(self._sandbox, self.line, {"op": "drop", "snapshot": self.number})


async def end(sandbox: RemoteSandbox, line: Line, message: wire.Data) -> None:
    """Ask the server to close something; where the line is lost it was closed with it."""
    if line.closed:
        return
    try:
        await ask(sandbox, line, message)
    except LineLost:
        return


async def ask(
    sandbox: RemoteSandbox, line: Line, message: wire.Data, wait_s: float = 0.0
) -> wire.Data:
    """The answer to a message, asked again while the server has no room.

    Raises:
        LineLost: none will come.
        SandboxFailure: none came in time, or the server's sandbox failed.
        SessionOver: there is no such session any more.
    """
    owned = {**message, "owner": sandbox.owner}

    async def attempt() -> wire.Data:
        answer = await line.ask(owned)
        if "error" in answer:
            raise wire.read_error(answer)
        return answer

    return await sandbox.patiently(attempt, wait_s)


class RemoteSession:
    """A Python interpreter on a server. See ``tools.sandbox.Session`` for every method.

    It is over when the connection to the server is lost.
    """

    def __init__(
        self,
        sandbox: RemoteSandbox,
        files: dict[str, str | bytes],
        limits: Limits,
        idle_s: float,
        life_s: float,
    ) -> None:
        self._sandbox = sandbox
        self._files = files
        self._limits = limits
        self._idle_s = idle_s
        self._life_s = life_s
        self._line: Line | None = None
        self._number = 0
        self._ended = False
        self._lock = asyncio.Lock()
        self._why = "it was not started: use `async with`"

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``, as far as the last answer told."""
        return self._line is None or self._line.closed or self._ended

    async def __aenter__(self) -> Self:
        """Start it. See ``start``."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def start(self) -> None:
        """Start the interpreter; one that runs already goes on.

        Raises:
            SandboxFailure: the sandbox failed, twice, or all its sessions stay open.
        """
        async with self._lock:
            if self.over:
                await self._start()

    async def restart(self) -> None:
        """Start anew: an interpreter without variables or files, whatever became of the last.

        Raises:
            SandboxFailure: see ``start``.
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
                line = await self._sandbox.line()
                name = line.number()
                message = {"op": "start", "session": name, "settings": settings}
                await self._made(line, message, {"op": "close", "session": name})
            except LineLost as error:
                if last_try:
                    raise self._sandbox.failure(str(error)) from None
                self._sandbox.retried()
                continue
            self._line, self._number, self._ended = line, name, False
            return

    async def _made(self, line: Line, message: wire.Data, undo: wire.Data) -> wire.Data:
        """Ask for something to be made; if nobody waits for it any more, it is undone."""
        try:
            return await ask(self._sandbox, line, message)
        except asyncio.CancelledError:
            line.tell({**undo, "number": line.number(), "owner": self._sandbox.owner})
            raise

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code where the last call left off, and say what a notebook would show.

        Raises:
            SessionOver: the interpreter has ended before; ``restart`` makes another.
            SandboxFailure: the sandbox failed; the session is over.
            ValueError: ``wall_s`` is outside the range of ``Limits.wall_s``.
        """
        limits = self._limits if wall_s is None else replace(self._limits, wall_s=wall_s)
        message = {"op": "run", "code": code, "wall_s": wall_s}
        async with self._lock, self._sandbox.slots:
            return wire.read_call((await self._ask(message, limits.wall_s))["result"])

    async def fork(self) -> RemoteSession:
        """A second session in the state of this one. Raises as ``tools.sandbox.Session.fork``."""
        async with self._lock, self._sandbox.slots:
            line = self._living()
            twin = RemoteSession(
                self._sandbox, self._files, self._limits, self._idle_s, self._life_s
            )
            name = line.number()
            await self._copy({"op": "fork", "twin": name}, {"op": "close", "session": name})
            twin._line, twin._number = line, name
            return twin

    async def snapshot(self) -> RemoteSnapshot:
        """The state as it is now, to ``restore`` later. Raises as ``fork``."""
        async with self._lock, self._sandbox.slots:
            line = self._living()
            name = line.number()
            await self._copy({"op": "snapshot", "snapshot": name}, {"op": "drop", "snapshot": name})
            return RemoteSnapshot(self._sandbox, line, name)

    async def restore(self, snapshot: RemoteSnapshot) -> None:
        """Go on from a snapshot, whatever became of this session since. Raises as ``fork``."""
        async with self._lock, self._sandbox.slots:
            if snapshot.line.closed:
                raise SessionOver("there is nothing to restore: the connection was lost")
            if self._line is not snapshot.line:
                await self._close()
                await self._start()
            await self._ask({"op": "restore", "snapshot": snapshot.number})

    async def close(self) -> None:
        """End the interpreter and everything it started. Closing twice is harmless."""
        self._why = "it was closed"
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await end(self._sandbox, line, {"op": "close", "session": self._number})

    def _living(self) -> Line:
        if self._line is None:
            raise SessionOver(_NO_INTERPRETER.format(why=self._why))
        if self._line.closed:
            raise SessionOver(_NO_INTERPRETER.format(why="the connection to the server was lost"))
        return self._line

    async def _copy(self, message: wire.Data, undo: wire.Data) -> None:
        line = self._living()
        try:
            await self._made(line, {**message, "session": self._number}, undo)
        except LineLost as error:
            raise self._lost(error) from None

    async def _ask(self, message: wire.Data, wait_s: float = 0.0) -> wire.Data:
        try:
            answer = await ask(
                self._sandbox, self._living(), {**message, "session": self._number}, wait_s
            )
        except SessionOver:
            self._ended = True
            raise
        except LineLost as error:
            raise self._lost(error) from None
        self._ended = answer["over"]
        return answer

    def _lost(self, error: LineLost) -> SandboxFailure:
        return self._sandbox.failure(f"{error}; the session's state is lost")
