"""The servers of a pool, and sessions on one of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from tools.sandbox.entering import Closed, Started
from tools.sandbox.errors import SandboxBusy, SandboxFailure, SessionOver
from tools.sandbox.health import Health
from tools.sandbox.remote.client import RemoteSandbox
from tools.sandbox.remote.session import RemoteSession, RemoteSnapshot
from tools.sandbox.results import CallResult

DOWN_S = 30.0
"""Seconds for which a server that failed gets no work, if another one is there."""


class Member:
    """One server of a pool.

    Args:
        sandbox: its client.
    """

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self.sandbox = sandbox
        self.used = 0
        """Number of runs, grades and sessions that the pool has there."""
        self._down_until = 0.0
        self._health: Health | None = None
        self._before: Counter[str] = Counter()
        """Counters of servers that were here before this one, which began at 0 again."""

    @property
    def load(self) -> tuple[bool, float]:
        """Whether the server failed a short time ago, and its work for each of its workers."""
        return time.monotonic() < self._down_until, self.used / self.sandbox.info.workers

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Count the work inside the context, and note if the server fails it."""
        self.used += 1
        try:
            async with self.noting():
                yield
        finally:
            self.used -= 1

    @asynccontextmanager
    async def noting(self) -> AsyncIterator[None]:
        """Note if the server fails the work inside the context."""
        try:
            yield
        except SandboxBusy:
            raise
        except SandboxFailure:
            self._down_until = time.monotonic() + DOWN_S
            raise

    async def health(self) -> Health | None:
        """The server's health with the counters of those before it; None if it never answered.

        Without an answer, it is the last one.
        """
        found: Health | None
        try:
            found = await self.sandbox.health()
        except SandboxFailure:
            found = self._health
        if found is None:
            return None
        if self._health is not None and found.queued < self._health.queued:
            self._before.update(self._health.counters())
        self._health = found
        total = {name: count + self._before[name] for name, count in found.counters().items()}
        return replace(found, **total)


class Servers(Protocol):
    """What a session needs of its pool."""

    async def with_another(self, work: Callable[[Member], Awaitable[None]]) -> None:
        """Do the work on a server, and if that fails on another one."""
        ...


class PoolSnapshot(Closed):
    """Frozen state of a session, on one server of the pool. See ``tools.sandbox.Snapshot``."""

    def __init__(self, member: Member, inner: RemoteSnapshot) -> None:
        self.member = member
        self.inner = inner

    async def close(self) -> None:
        """End the snapshot's process. Closing twice is harmless."""
        await self.inner.close()


class PoolSession(Started):
    """A Python interpreter on one server of a pool; ``tools.sandbox.Session`` has the methods.

    Args:
        pool: the servers.
        make: makes a session that is not started.
    """

    def __init__(self, pool: Servers, make: Callable[[RemoteSandbox], RemoteSession]) -> None:
        self._pool = pool
        self._make = make
        self._member: Member | None = None
        self._inner: RemoteSession | None = None
        self._lock = asyncio.Lock()

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``, as of the server's last answer."""
        return self._inner is None or self._inner.over

    async def start(self) -> None:
        """Start the interpreter. Does nothing if it is running.

        Raises:
            SandboxFailure: two servers failed, or no session permit became free in time.
        """
        async with self._lock:
            if self.over:
                await self._leave()
                await self._pool.with_another(self._start)

    async def restart(self) -> None:
        """End the interpreter, if any, and start a new one, on the least busy server.

        Raises:
            SandboxFailure: as ``start``.
        """
        async with self._lock:
            await self._leave()
            await self._pool.with_another(self._start)

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code in the interpreter; see ``RemoteSession.run``."""
        member, inner = self._place()
        async with member.noting():
            return await inner.run(code, wall_s=wall_s)

    async def fork(self) -> PoolSession:
        """Make a second session, on the same server, that continues from the current state."""
        member, inner = self._place()
        twin = PoolSession(self._pool, self._make)
        async with member.noting():
            twin._enter(member, await inner.fork())
        return twin

    async def snapshot(self) -> PoolSnapshot:
        """Make a snapshot of the current state, for ``restore``."""
        member, inner = self._place()
        async with member.noting():
            return PoolSnapshot(member, await inner.snapshot())

    async def restore(self, snapshot: PoolSnapshot) -> None:
        """Continue from a snapshot, on its server, even if this session has ended."""
        async with self._lock:
            if self._member is not snapshot.member:
                await self._leave()
                self._enter(snapshot.member, self._make(snapshot.member.sandbox))
            member, inner = self._place()
            async with member.noting():
                await inner.restore(snapshot.inner)

    async def close(self) -> None:
        """End the interpreter and every process that it started. Closing twice is harmless."""
        async with self._lock:
            await self._leave()

    async def _start(self, member: Member) -> None:
        inner = self._make(member.sandbox)
        async with member.noting():
            await inner.start()
        self._enter(member, inner)

    def _place(self) -> tuple[Member, RemoteSession]:
        if self._member is None or self._inner is None:
            raise SessionOver(
                "the session is over (it was not started, or was closed): "
                "`await session.restart()` starts another, without its variables and files"
            )
        return self._member, self._inner

    def _enter(self, member: Member, inner: RemoteSession) -> None:
        self._member, self._inner = member, inner
        member.used += 1

    async def _leave(self) -> None:
        member, inner = self._member, self._inner
        self._member = self._inner = None
        if member is not None and inner is not None:
            member.used -= 1
            await inner.close()
