"""A sandbox that another machine serves, with the interface of one of this machine."""

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
from tools.sandbox import grade as grading
from tools.sandbox.cases import Test
from tools.sandbox.errors import SandboxBusy, SandboxFailure
from tools.sandbox.files import checked_patterns
from tools.sandbox.health import Health
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.queue import FairQueue
from tools.sandbox.reading import Clock, Reader
from tools.sandbox.remote import wire
from tools.sandbox.remote.about import CONNECT_S, About, ask_about, checked_url
from tools.sandbox.remote.line import Line, LineLost
from tools.sandbox.remote.session import RemoteSession
from tools.sandbox.results import RunResult, Verdict

PATIENCE_S = 600.0
"""Seconds that a request may wait on the server, beside what its programs take."""
_HEARTBEAT_S = 15.0
_RETRY_S = 1.0
_PLACES_PER_WORKER = 4
"""Requests under way for each of the server's workers: it shall find the next one waiting."""


class RemoteSandbox:
    """Runs programs in the sandbox of a server. Made by ``make_sandbox``, used in ``async with``.

    One asyncio loop uses it, with as many concurrent callers as it likes; their owners are served
    in turn. A connection that is lost counts as a failure of the sandbox: what it carried is asked
    once more, sessions are over.

    Args:
        url: http or https, a host and a port.
        limits: of each run that brings none of its own; None: the server's.
        min_isolation: weakest isolation to accept of the server; None: any.
        token: the server's; None: that of the environment variable TURNWISE_SANDBOX_TOKEN, if set.
        patience_s: seconds that a request may wait on the server, beside what its programs take.

    Raises:
        ValueError: no such URL.
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
        self._about: About | None = None
        self._reader = Reader()
        self._line: Line | None = None
        self._line_lock = asyncio.Lock()
        self._failures = 0
        self._retries = 0
        self.slots = FairQueue(1)
        """One for each request under way; as many as suit the server, once it is known."""

    @property
    def about(self) -> About:
        """What the server says of itself.

        Raises:
            RuntimeError: it was not asked yet.
        """
        if self._about is None:
            raise RuntimeError("the sandbox is not started: use `async with`")
        return self._about

    @property
    def limits(self) -> Limits:
        """Of each run that brings none of its own."""
        return self._limits or self.about.limits

    @property
    def backend(self) -> str:
        """The server's backend."""
        return self.about.backend

    @property
    def isolation(self) -> str:
        """The level on the server: "namespaces", "restricted" or "none"."""
        return self.about.isolation

    @property
    def limits_enforced_by(self) -> str:
        """What holds the limits of memory and processes there."""
        return self.about.limits_enforced_by

    @property
    def lost(self) -> tuple[str, ...]:
        """What the level promises elsewhere and the server's does not give, in words."""
        return self.about.lost

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
        """Connect to the server.

        Raises:
            SandboxUnavailable: it cannot be reached, refuses the token, or is too weak.
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
            self._about = await ask_about(self._http, self._url, self._min_isolation)
            self.limits.check_within(self._about.limits)
        except BaseException:
            await self.close()
            raise
        self.slots = FairQueue(_PLACES_PER_WORKER * self._about.workers)

    async def close(self) -> None:
        """End the connection; the server ends this client's runs and sessions."""
        http, self._http = self._http, None
        if self._line is not None:
            await self._line.close()
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
        """See ``Sandbox.grade``. Very large values of outcomes are left out (None)."""
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
        """See ``Sandbox.session``. It ends when the connection to the server does."""
        check_session_times(idle_s, life_s)
        return RemoteSession(self, dict(files or {}), limits or self.limits, idle_s, life_s)

    async def ready(self) -> None:
        """Wait while too many wait for their turn: who starts more work asks before."""
        await self.slots.ready()

    async def health(self) -> Health:
        """The server's numbers, of all its clients; this one's failures and retries are added.

        Raises:
            SandboxFailure: the server does not tell.
        """
        try:
            async with asyncio.timeout(CONNECT_S), self._usable().get("/health") as response:
                response.raise_for_status()
                health = Health(**await response.json())
        except (aiohttp.ClientError, OSError, TypeError) as error:
            raise SandboxFailure(f"{self._url} does not tell its health: {error!r}") from None
        return replace(
            health,
            failures=health.failures + self._failures,
            retries=health.retries + self._retries,
        )

    async def patiently(
        self, attempt: Callable[[], Awaitable[wire.Data]], wait_s: float
    ) -> wire.Data:
        """What ``attempt`` answers, asked again while the server has no room.

        Raises:
            SandboxBusy: it had none until the deadline.
            SandboxFailure: no answer until then.
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

    def failure(self, what: str) -> SandboxFailure:
        """What a caller is told when the server, or the way to it, failed; it is counted."""
        self._failures += 1
        return SandboxFailure(f"{self._url}: {what}")

    def retried(self) -> None:
        """Something that was lost is tried again."""
        self._retries += 1

    @property
    def owner(self) -> str:
        """Who calls, in a name that no other client uses."""
        return f"{self._name}/{hash(current_owner()):x}"

    async def line(self) -> Line:
        """The connection that carries sessions, made anew where it was lost.

        Raises:
            LineLost: the server cannot be reached.
        """
        async with self._line_lock:
            if self._line is None or self._line.closed:
                if self._line is not None:
                    await self._line.close()
                try:
                    async with asyncio.timeout(CONNECT_S):
                        socket = await self._usable().ws_connect(
                            "/sessions", heartbeat=_HEARTBEAT_S, max_msg_size=0
                        )
                except (aiohttp.ClientError, OSError):
                    raise LineLost from None
                self._line = Line(socket)
            return self._line

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
                self.retried()
                await asyncio.sleep(_RETRY_S)
                if self._http is None:
                    raise self.failure("closed while a request was under way")

        async with self.slots:
            return await self.patiently(attempt, wait_s)

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
            state = "not started: use `async with`" if self._about is None else "closed"
            raise RuntimeError(f"the sandbox is {state}")
        return self._http
