"""Sends jobs to the processes of one backend, and counts the jobs."""

from __future__ import annotations

import asyncio
import platform
import socket
import sys

from tools.sandbox.backends.launcher import Launcher
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.health import Health, Tally, measure
from tools.sandbox.host.job import Reply, Request
from tools.sandbox.host.queue import FairQueue
from tools.sandbox.host.reading import Clock, Reader
from tools.sandbox.host.session_link import SessionLink
from tools.sandbox.host.session_permits import SessionPermits
from tools.sandbox.host.zygote import LostError
from tools.sandbox.host.zygotes import Zygotes
from tools.sandbox.limits import Limits
from tools.sandbox.results import RunResult, status_of

_SUPPORTED = ("linux", "x86_64")
_MAX_IDLE = 4
RECYCLE_AFTER = 2000
"""Number of runs after which a zygote is replaced. All runs of a zygote share one address layout
and one hash seed."""


class Executor:
    """Runs the jobs of a sandbox: programs, grades and sessions.

    A caller must hold one of ``permits`` for each job, and one of ``session_permits`` for each open
    session.

    Args:
        launcher: the backend, until ``start`` is called with another backend.
        limits: limits of each job.
        workers: maximum number of jobs in flight.
        max_sessions: maximum number of open sessions, copies and snapshots.
    """

    def __init__(self, launcher: Launcher, limits: Limits, workers: int, max_sessions: int) -> None:
        self.limits = limits
        self.workers = workers
        self.max_sessions = max_sessions
        self.session_permits = SessionPermits(
            max_sessions,
            f"max_sessions ({max_sessions}) are open: close some, or pass make_sandbox a higher "
            "max_sessions",
        )
        """One permit for each open session, copy or snapshot."""
        self.permits = FairQueue(workers)
        """One permit for each run, grade or session call in flight."""
        self.tally = Tally()
        self.reader = Reader()
        self.links: set[SessionLink] = set()
        self.launcher = launcher
        self._zygotes: Zygotes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.launcher.backend

    @property
    def isolation(self) -> str:
        """The isolation level: "namespaces", "restricted" or "none"."""
        return self.launcher.isolation

    @property
    def limits_enforced_by(self) -> str:
        """The mechanisms that enforce the limits of memory and processes."""
        return self.launcher.enforced_by

    @property
    def zygotes(self) -> Zygotes:
        """The running zygotes.

        Raises:
            RuntimeError: the sandbox is not started, is closed, or belongs to another event loop.
        """
        if self._loop is None or self._zygotes is None:
            state = "not started: use `async with`" if self._loop is None else "closed"
            raise RuntimeError(f"the sandbox is {state}")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the sandbox belongs to another event loop: make one sandbox for each loop"
            )
        return self._zygotes

    def check_running(self) -> None:
        """Raise a ``RuntimeError`` unless the sandbox runs on this event loop."""
        _ = self.zygotes

    def bind_loop(self) -> None:
        """Bind the sandbox to the running event loop.

        Raises:
            RuntimeError: a loop was bound before.
        """
        if self._loop is not None:
            raise RuntimeError("this sandbox was started before: make a new one")
        self._loop = asyncio.get_running_loop()

    async def start(self, launcher: Launcher) -> None:
        """Start the zygotes of a backend.

        Raises:
            SandboxUnavailable: the backend does not start here.
        """
        self.launcher = launcher
        if self.isolation != "none" and (sys.platform, platform.machine()) != _SUPPORTED:
            raise SandboxUnavailable(
                f"{self.backend} works on Linux on x86_64 only (this is {sys.platform} on "
                f"{platform.machine()})"
            )
        zygotes = Zygotes(
            launcher,
            self.limits,
            idle=min(_MAX_IDLE, self.workers),
            recycle_after=RECYCLE_AFTER,
        )
        self._zygotes = zygotes
        try:
            await zygotes.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every process. The caller can then ``start`` another backend."""
        zygotes, self._zygotes = self._zygotes, None
        if zygotes is not None:
            await zygotes.close()

    def reset_counters(self) -> None:
        """Reset the counters, which have counted only the canary program so far."""
        self.tally, self.permits = Tally(), FairQueue(self.workers)

    async def close(self) -> None:
        """End every process. Jobs in flight fail, and sessions are lost."""
        zygotes, self._zygotes = self._zygotes, None
        for link in list(self.links):
            link.close()
        if zygotes is not None:
            await zygotes.close()
        self.reader.close()

    async def exchange(
        self,
        request: Request,
        channel: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> Reply:
        """Run one job and return the supervisor's reply.

        A job without a channel is retried once. A job with a channel cannot be repeated.

        Raises:
            SandboxFailure: there was no reply to a job without a channel.
            LostError: there was no reply to a job with a channel.
        """
        zygotes = self.zygotes
        if channel is not None:
            return await zygotes.run(request, channel, clock)
        try:
            return await zygotes.run(request, None)
        except LostError:
            self.tally.retries += 1
            try:
                return await zygotes.run(request, None)
            except LostError as error:
                raise self.failure(str(error)) from None

    async def open_link(self, request: Request) -> SessionLink:
        """Open a stream to a supervisor that will serve a session.

        Raises:
            LostError: no supervisor is waiting.
            SandboxFailure: no zygote starts any more.
        """
        stream, close = await self.zygotes.connect()
        link = SessionLink(stream, close, request.limits.output_kb * 1024, self.links.discard)
        self.links.add(link)
        return link

    def failure(self, message: str) -> SandboxFailure:
        """Count a failure of the sandbox, and make the exception to raise for it."""
        self.tally.failures += 1
        return SandboxFailure(f"{self.backend}: {message}")

    def result(self, reply: Reply, limits: Limits) -> RunResult:
        """Count a finished program, and make its result from the supervisor's reply."""
        head = reply.head
        stderr = reply.stderr.decode(errors="replace")
        status = status_of(head, stderr, limits.cpu_seconds)
        self.tally.runs += 1
        self.tally.end(status)
        return RunResult(
            status=status,
            stdout=reply.stdout.decode(errors="replace"),
            stderr=stderr,
            exit_code=head["exit_code"],
            signal=head["signal"],
            wall_s=head["wall_s"],
            cpu_s=head["cpu_s"],
            max_rss_mb=head["max_rss_kb"] / 1024,
            isolation=self.isolation,
            backend=self.backend,
            limits_enforced_by=self.limits_enforced_by,
            stdout_truncated=head["stdout_truncated"],
            stderr_truncated=head["stderr_truncated"],
            detail=head["reason"],
            files=reply.files,
            files_left_out=head.get("left_out", {}),
        )

    def health(self) -> Health:
        """The counters since the start and the current gauges.

        Raises:
            RuntimeError: the sandbox is not running.
        """
        return measure(self.tally, self.permits, self.session_permits, self.zygotes)
