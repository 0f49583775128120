"""The client of a sandbox on another machine, with the interface of a local sandbox."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import aiohttp

from tools.owner import current_owner
from tools.sandbox.errors import SandboxBusy, SandboxFailure
from tools.sandbox.files import checked_patterns
from tools.sandbox.grading import grade as grading
from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.host.queue import FairQueue
from tools.sandbox.host.reading import Clock, Reader
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.remote import wire
from tools.sandbox.remote.connection import Connection, ConnectionLost
from tools.sandbox.remote.server_info import CONNECT_S, ServerInfo, checked_url, query_server
from tools.sandbox.remote.session import RemoteSession
from tools.sandbox.results import RunResult, Verdict

PATIENCE_S = 600.0
"""Seconds that a request may wait on the server, in addition to its programs' time limits."""
_HEARTBEAT_S = 15.0
_RETRY_S = 1.0
_PERMITS_PER_WORKER = 4
"""Concurrent requests for each worker of the server, so that no worker waits for the next one."""


class RemoteSandbox:
    """Runs programs in the sandbox of a server. Made by ``make_sandbox``, used in ``async with``.

    One client serves one event loop and any number of concurrent callers; their owners are served
    by round-robin. A lost connection counts as a failure of the sandbox: runs and grades are
    retried once, sessions are over.

    Args:
        url: scheme (http or https), host and port of the server.
        limits: limits of each run that names none; None: the server's.
        min_isolation: weakest isolation of the server to accept; None: any.
        token: token of the server; None: the environment variable TURNWISE_SANDBOX_TOKEN, if set.
        patience_s: seconds that a request may wait on the server, in addition to its programs'
            time limits.

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
        self._url = checked_url(url)
        self._limits = limits
        self._min_isolation = min_isolation
        self._token = token or os.environ.get(wire.TOKEN_VARIABLE)
        self._patience_s = patience_s
        self._name = uuid.uuid4().hex
        self._rng = random.Random(self._name)
        self._http: aiohttp.ClientSession | None = None
        self._info: ServerInfo | None = None
        self._reader = Reader()
        self._connection: Connection | None = None
        self._connection_lock = asyncio.Lock()
        self._failures = 0
        self._retries = 0
        self.permits = FairQueue(1)
        """One permit for each request; ``start`` sets their number by the server's workers."""

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
        """Limits of each run, grade and session that names none."""
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
        """Guarantees of the level that the server lacks, in words."""
        return self.info.lost

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
        """Connect to the server.

        Raises:
            SandboxUnavailable: the server is unreachable, rejects the token, or is too weak.
            ValueError: the limits exceed the server's.
        """
        if self._http is not None:
            raise RuntimeError("this sandbox was started before: make a new one")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._http = aiohttp.ClientSession(
            self._url,
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        try:
            self._info = await query_server(self._http, self._url, self._min_isolation)
            self.limits.check_within(self._info.limits)
        except BaseException:
            await self.close()
            raise
        self.permits = FairQueue(_PERMITS_PER_WORKER * self._info.workers)

    async def close(self) -> None:
        """End the connection; the server ends this client's runs and sessions."""
        http, self._http = self._http, None
        if self._connection is not None:
            await self._connection.close()
        if http is not None:
            await http.close()
        self._reader.close()

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """See ``Sandbox.run``."""
        bounds = limits or self.limits
        message = {
            "source": source,
            "stdin": stdin,
            "files": dict(files or {}),
            "limits": wire.fields_of(bounds),
            "collect": list(checked_patterns(collect)),
        }
        return wire.read_run(await self._post("/run", message, bounds.wall_s))

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
        """See ``Sandbox.grade``. Values of outcomes beyond 64 MiB are dropped (None)."""
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
        return wire.read_verdict(await self._post("/grade", message, wait_s))

    def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        idle_s: float = 600.0,
        life_s: float = 3600.0,
    ) -> RemoteSession:
        """See ``Sandbox.session``. The session ends with the connection to the server."""
        check_session_times(idle_s, life_s)
        return RemoteSession(self, dict(files or {}), limits or self.limits, idle_s, life_s)

    async def ready(self) -> None:
        """Wait until the queue is not full. Await it before starting more work."""
        await self.permits.ready()

    async def health(self) -> Health:
        """The server's health, over all its clients, plus this client's failures and retries.

        Raises:
            SandboxFailure: the server does not report its health.
        """
        try:
            async with asyncio.timeout(CONNECT_S), self._usable().get("/health") as response:
                response.raise_for_status()
                health = Health(**await response.json())
        except (aiohttp.ClientError, OSError, TypeError) as error:
            raise SandboxFailure(f"{self._url} does not report its health: {error!r}") from None
        return replace(
            health,
            failures=health.failures + self._failures,
            retries=health.retries + self._retries,
        )

    async def retry_while_busy(
        self, attempt: Callable[[], Awaitable[wire.Data]], wait_s: float
    ) -> wire.Data:
        """The answer of ``attempt``, which is repeated while the server is full.

        Raises:
            SandboxBusy: the server was full until the deadline.
            SandboxFailure: no answer until the deadline.
        """
        busy: SandboxBusy | None = None
        try:
            async with asyncio.timeout(self._patience_s + wait_s):
                while True:
                    try:
                        return await attempt()
                    except SandboxBusy as error:
                        busy = error
                    await asyncio.sleep(_RETRY_S * (0.5 + self._rng.random()))
        except TimeoutError:
            if busy is not None:
                self._failures += 1
                raise SandboxBusy(f"{self._url} had no room: {busy}") from None
            raise self.failure(f"no answer within {self._patience_s + wait_s:g} s") from None

    def failure(self, message: str) -> SandboxFailure:
        """The error to raise when the server or the connection failed; it is counted."""
        self._failures += 1
        return SandboxFailure(f"{self._url}: {message}")

    def count_retry(self) -> None:
        """Count a retry after a lost connection."""
        self._retries += 1

    @property
    def owner(self) -> str:
        """Identifier of the current owner, unique among all clients."""
        return f"{self._name}/{hash(current_owner()):x}"

    async def connection(self) -> Connection:
        """The connection that carries sessions; opened again if it was lost.

        Raises:
            ConnectionLost: the server cannot be reached.
        """
        async with self._connection_lock:
            if self._connection is None or self._connection.closed:
                if self._connection is not None:
                    await self._connection.close()
                try:
                    async with asyncio.timeout(CONNECT_S):
                        socket = await self._usable().ws_connect(
                            "/sessions", heartbeat=_HEARTBEAT_S, max_msg_size=0
                        )
                except (aiohttp.ClientError, OSError):
                    raise ConnectionLost from None
                self._connection = Connection(socket)
            return self._connection

    async def _post(self, path: str, message: wire.Data, wait_s: float) -> wire.Data:
        http, body, owner = self._usable(), wire.pack(message), self.owner
        lost = False

        async def attempt() -> wire.Data:
            nonlocal lost
            while True:
                try:
                    async with http.post(
                        path,
                        data=body,
                        headers={wire.OWNER: owner, "Content-Type": "application/json"},
                        allow_redirects=False,
                    ) as response:
                        return await self._answer(response)
                except (aiohttp.ClientError, OSError) as error:
                    if lost or self._http is None:
                        raise self.failure(f"{type(error).__name__}: {error}") from None
                lost = True
                self.count_retry()
                await asyncio.sleep(_RETRY_S)
                if self._http is None:
                    raise self.failure("closed during a request")

        async with self.permits:
            return await self.retry_while_busy(attempt, wait_s)

    async def _answer(self, response: aiohttp.ClientResponse) -> wire.Data:
        if response.content_type != "application/json":
            raise self.failure(f"{response.status} {response.reason}")
        try:
            body = await response.read()
            data = await self._reader.read(len(body), lambda: wire.unpack(body), Clock())
        except wire.WireError as error:
            raise self.failure(str(error)) from None
        if response.status != 200:
            raise wire.read_error(data)
        return data

    def _usable(self) -> aiohttp.ClientSession:
        if self._http is None:
            state = "not started: use `async with`" if self._info is None else "closed"
            raise RuntimeError(f"the sandbox is {state}")
        return self._http
