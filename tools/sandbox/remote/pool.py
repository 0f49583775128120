"""Sandboxes of several servers as one: work goes to the least busy, and away from lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from tools.sandbox.backends.launcher import LEVELS
from tools.sandbox.entering import Started
from tools.sandbox.errors import SandboxBusy, SandboxFailure
from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health, total_of
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.remote.client import RemoteSandbox
from tools.sandbox.remote.pool_session import Member, PoolSession
from tools.sandbox.remote.session import RemoteSession
from tools.sandbox.results import RunResult, Verdict

T = TypeVar("T")
_SERVERS_TRIED = 2
"""A program that makes servers fail must not reach all of them."""


class SandboxPool(Started):
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
        """The health of all servers, for all their clients, added up.

        Raises:
            SandboxFailure: no server has ever reported its health.
        """
        answers = await asyncio.gather(*(member.health() for member in self._members))
        found = [answer for answer in answers if answer is not None]
        if not found:
            raise SandboxFailure("no server of the pool reports its health")
        return total_of(found)

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
