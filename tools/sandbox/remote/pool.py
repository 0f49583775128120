"""Sandboxes of several servers as one: work goes to the least busy, and away from lost ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from types import TracebackType
from typing import Self, TypeVar

from tools.sandbox.backends.launcher import LEVELS
from tools.sandbox.errors import SandboxBusy, SandboxFailure, SessionOver
from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.remote.client import RemoteSandbox
from tools.sandbox.remote.session import RemoteSession, RemoteSnapshot
from tools.sandbox.results import CallResult, RunResult, Verdict

T = TypeVar("T")
DOWN_S = 30.0
"""Seconds for which a server that failed gets no work, if another one is there."""
_SERVERS_TRIED = 2
"""A program that makes servers fail must not reach all of them."""


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


class SandboxPool:
    """The sandboxes of several servers. Use ``make_sandbox`` to make one, and ``async with``.

    A run or grade that a server loses is repeated on another one. The state of a session is lost
    with its server; ``restart`` then starts an interpreter on another one.

    Args:
        urls: scheme, host and port of each server.
        limits: default limits of each run, or None for those of the first server.
        min_isolation: weakest isolation of a server to accept, or None for any.
        token: token that all servers require. If None, the value of the environment variable
            TURNWISE_SANDBOX_TOKEN, if set.

    Raises:
        ValueError: an URL is not that of a server, or occurs twice.
    """

    def __init__(
        self,
        urls: Sequence[str],
        limits: Limits | None = None,
        *,
        min_isolation: str | None = None,
        token: str | None = None,
    ) -> None:
        if len(set(urls)) < len(urls):
            raise ValueError(f"sandbox ({','.join(urls)}) names a server twice")
        self._limits = limits
        self._members = [
            Member(RemoteSandbox(url, limits, min_isolation=min_isolation, token=token))
            for url in urls
        ]

    @property
    def limits(self) -> Limits:
        """Default limits, for each run, grade and session whose caller passes no limits."""
        return self._limits or self._members[0].sandbox.limits

    @property
    def backend(self) -> str:
        """Names of the servers' backends."""
        return self._named(lambda sandbox: sandbox.backend)

    @property
    def isolation(self) -> str:
        """The weakest isolation level of the servers."""
        return min((m.sandbox.isolation for m in self._members), key=LEVELS.index)

    @property
    def limits_enforced_by(self) -> str:
        """Mechanisms that enforce the limits of memory and processes on the servers."""
        return self._named(lambda sandbox: sandbox.limits_enforced_by)

    @property
    def lost(self) -> tuple[str, ...]:
        """Descriptions of the isolation level's guarantees that a server cannot give."""
        return tuple(dict.fromkeys(what for m in self._members for what in m.sandbox.lost))

    async def __aenter__(self) -> Self:
        """Call ``start``."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        await self.close()

    async def start(self) -> None:
        """Connect to all servers.

        Raises:
            SandboxUnavailable: a server is unreachable, rejects the token, or has too weak an
                isolation.
            ValueError: the limits exceed those of a server.
        """
        try:
            for member in self._members:
                await member.sandbox.start()
            for member in self._members:
                self.limits.check_within(member.sandbox.info.limits)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections. The servers then end this client's runs and sessions."""
        for member in self._members:
            await member.sandbox.close()

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """Run a program on a server; see ``Sandbox.run``."""
        bounds = limits or self.limits
        return await self._on_a_server(
            lambda sandbox: sandbox.run(source, stdin, files, bounds, collect=collect)
        )

    async def grade(
        self,
        source: str,
        tests: Sequence[Test],
        entry_point: str | None = None,
        *,
        limits: Limits | None = None,
        stop_at_first_failure: bool = False,
        fresh_process: bool = False,
    ) -> Verdict:
        """Test a submission on a server; see ``RemoteSandbox.grade``."""
        bounds = limits or self.limits
        return await self._on_a_server(
            lambda sandbox: sandbox.grade(
                *(source, tests, entry_point),
                limits=bounds,
                stop_at_first_failure=stop_at_first_failure,
                fresh_process=fresh_process,
            )
        )

    def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        idle_s: float = 600.0,
        life_s: float = 3600.0,
    ) -> PoolSession:
        """A session, on the least busy server when it starts; see ``Sandbox.session``."""
        check_session_times(idle_s, life_s)
        bounds, copied = limits or self.limits, dict(files or {})

        def make(sandbox: RemoteSandbox) -> RemoteSession:
            return sandbox.session(copied, bounds, idle_s=idle_s, life_s=life_s)

        return PoolSession(self, make)

    async def ready(self) -> None:
        """Wait until the queue of the least busy server is not full."""
        await self.choose([]).sandbox.ready()

    async def health(self) -> Health:
        """The health of the servers that answer, for all their clients, added up.

        Raises:
            SandboxFailure: no server reports its health.
        """
        asked = (member.sandbox.health() for member in self._members)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [answer for answer in answers if isinstance(answer, Health)]
        if not found:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        names = [field.name for field in fields(Health)]
        total = {name: sum(getattr(health, name) for health in found) for name in names}
        slowest = max(health.queue_wait_p95_s for health in found)
        return replace(found[0], **(total | {"queue_wait_p95_s": slowest}))

    def choose(self, tried: Sequence[Member]) -> Member:
        """The least busy server that was not tried. One that failed a short time ago comes last."""
        left = [member for member in self._members if member not in tried]
        return min(left, key=lambda member: member.load)

    async def with_another(self, work: Callable[[Member], Awaitable[T]]) -> T:
        """Do the work on a server, and if that fails on another one."""
        tried: list[Member] = []
        while True:
            member = self.choose(tried)
            tried.append(member)
            try:
                return await work(member)
            except SandboxBusy:
                raise
            except SandboxFailure:
                if len(tried) == min(_SERVERS_TRIED, len(self._members)):
                    raise

    async def _on_a_server(self, work: Callable[[RemoteSandbox], Awaitable[T]]) -> T:
        async def there(member: Member) -> T:
            async with member.working():
                return await work(member.sandbox)

        return await self.with_another(there)

    def _named(self, name: Callable[[RemoteSandbox], str]) -> str:
        return ", ".join(dict.fromkeys(name(member.sandbox) for member in self._members))


class PoolSnapshot:
    """Frozen state of a session, on one server of the pool. See ``tools.sandbox.Snapshot``."""

    def __init__(self, member: Member, inner: RemoteSnapshot) -> None:
        self.member = member
        self.inner = inner

    async def __aenter__(self) -> Self:
        """Return this snapshot."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        await self.close()

    async def close(self) -> None:
        """End the snapshot's process. Closing twice is harmless."""
        await self.inner.close()


class PoolSession:
    """A Python interpreter on one server of a pool; ``tools.sandbox.Session`` has the methods.

    Args:
        pool: the servers.
        make: makes a session that is not started.
    """

    def __init__(self, pool: SandboxPool, make: Callable[[RemoteSandbox], RemoteSession]) -> None:
        self._pool = pool
        self._make = make
        self._member: Member | None = None
        self._inner: RemoteSession | None = None
        self._lock = asyncio.Lock()

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``, as of the server's last answer."""
        return self._inner is None or self._inner.over

    async def __aenter__(self) -> Self:
        """Call ``start``."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        await self.close()

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
