"""The client of a sandbox on another machine, with the interface of a local sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import aiohttp

from tools.sandbox.entering import Started
from tools.sandbox.errors import SandboxFailure
from tools.sandbox.files import checked_patterns
from tools.sandbox.grading import grade as grading
from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.remote import wire
from tools.sandbox.remote.server_info import CONNECT_S, ServerInfo, checked_url, query_server
from tools.sandbox.remote.session import RemoteSession
from tools.sandbox.remote.transport import Transport
from tools.sandbox.results import RunResult, Verdict

PATIENCE_S = 600.0
"""Seconds that a request can wait on the server, in addition to its programs' time limits."""


class RemoteSandbox(Started):
    """Runs programs in a server's sandbox. Use ``make_sandbox`` to make one, and ``async with``.

    One client serves one event loop and any number of concurrent callers, whose owners
    (``tools.owner``) it serves by round-robin. A lost connection counts as a failure of the
    sandbox: runs and grades are retried once, and sessions are over.

    Args:
        url: scheme (http or https), host and port of the server.
        limits: default limits of each run, or None for the server's limits.
        min_isolation: weakest isolation of the server to accept, or None for any.
        token: token that the server requires. If None, the value of the environment variable
            TURNWISE_SANDBOX_TOKEN, if set.
        patience_s: seconds that a request can wait on the server, in addition to its programs' time
            limits.

    Raises:
        ValueError: ``url`` is not the URL of a server.
    """

    def __init__(
        self,
        url: str,
        limits: Limits | None = None,
        *,
        min_isolation: str | None = None,
        token: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._limits = limits
        self._min_isolation = min_isolation
        self._info: ServerInfo | None = None
        self._transport = Transport(
            checked_url(url), token or os.environ.get(wire.TOKEN_VARIABLE), patience_s
        )

    @property
    def info(self) -> ServerInfo:
        """Properties of the server's sandbox.

        Raises:
            RuntimeError: the client is not started.
        """
        if self._info is None:
            raise RuntimeError("the sandbox is not started: use `async with`")
        return self._info

    @property
    def limits(self) -> Limits:
        """Default limits, for each run, grade and session whose caller passes no limits."""
        return self._limits or self.info.limits

    @property
    def backend(self) -> str:
        """Name of the server's backend."""
        return self.info.backend

    @property
    def isolation(self) -> str:
        """Isolation level of the server: "namespaces", "restricted" or "none"."""
        return self.info.isolation

    @property
    def limits_enforced_by(self) -> str:
        """Mechanisms that enforce the limits of memory and processes on the server."""
        return self.info.limits_enforced_by

    @property
    def lost(self) -> tuple[str, ...]:
        """Descriptions of the isolation level's guarantees that the server cannot give."""
        return self.info.lost

    async def start(self) -> None:
        """Connect to the server.

        Raises:
            SandboxUnavailable: the server is unreachable, rejects the token, or has too weak an
                isolation.
            ValueError: the limits exceed those of the server.
        """
        transport = self._transport
        transport.open()
        try:
            self._info = await query_server(transport.http, transport.url, self._min_isolation)
            self.limits.check_within(self._info.limits)
        except BaseException:
            await self.close()
            raise
        transport.set_workers(self._info.workers)

    async def close(self) -> None:
        """Close all connections. The server then ends this client's runs and sessions."""
        await self._transport.close()

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """Run a program on the server; see ``Sandbox.run``."""
        bounds = limits or self.limits
        message = {
            "source": source,
            "stdin": stdin,
            "files": dict(files or {}),
            "limits": wire.fields_of(bounds),
            "collect": list(checked_patterns(collect)),
        }
        return wire.read_run(await self._transport.post("/run", message, bounds.wall_s))

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
        """Test a submission on the server; see ``Sandbox.grade``.

        Values after the first 64 MiB of the outcomes together become None.
        """
        bounds = limits or self.limits
        grading.check(grading.Submission(source, entry_point, bounds, stop_at_first_failure), tests)
        message = {
            "source": source,
            "tests": wire.write_tests(tests),
            "entry_point": entry_point,
            "limits": wire.fields_of(bounds),
            "stop_at_first_failure": stop_at_first_failure,
            "fresh_process": fresh_process,
        }
        wait_s = bounds.wall_s * (2 + len(tests))
        return wire.read_verdict(await self._transport.post("/grade", message, wait_s))

    def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        idle_s: float = 600.0,
        life_s: float = 3600.0,
    ) -> RemoteSession:
        """A session on the server, which ends with the connection; see ``Sandbox.session``."""
        check_session_times(idle_s, life_s)
        return RemoteSession(
            self._transport, dict(files or {}), limits or self.limits, idle_s, life_s
        )

    async def ready(self) -> None:
        """Wait until the queue is not full. Await it before starting more work."""
        await self._transport.permits.ready()

    async def health(self) -> Health:
        """The health of the server, for all its clients, plus this client's failures and retries.

        Raises:
            SandboxFailure: the server does not report its health.
        """
        transport = self._transport
        try:
            async with asyncio.timeout(CONNECT_S), transport.http.get("/health") as response:
                response.raise_for_status()
                health = Health(**await response.json())
        except (aiohttp.ClientError, OSError, TypeError) as error:
            raise SandboxFailure(f"{transport.url} does not report its health: {error!r}") from None
        return replace(
            health,
            failures=health.failures + transport.failures,
            retries=health.retries + transport.retries,
        )
