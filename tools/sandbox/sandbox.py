"""The sandbox that users hold: runs programs, grades submissions, bounds what is in flight."""

from __future__ import annotations

import asyncio
import logging
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from tools.sandbox import grade as grading
from tools.sandbox.canary import CANARY, EXPECTED
from tools.sandbox.cases import Test
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.files import checked_files, checked_patterns, utf8
from tools.sandbox.health import Health, Tally, measure
from tools.sandbox.job import Reply, Request
from tools.sandbox.launcher import Launcher
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.link import Link
from tools.sandbox.queue import FairQueue
from tools.sandbox.reading import Clock, Reader
from tools.sandbox.results import RunResult, Verdict, status_of
from tools.sandbox.session import Session
from tools.sandbox.zygotes import LostError, Zygotes

_log = logging.getLogger(__name__)

_SUPPORTED = ("linux", "x86_64")
_MAX_IDLE = 4
MAX_WORKERS = 128
_MAX_SESSIONS = 1 << 20
RECYCLE_AFTER = 2000
"""Runs after which a zygote is replaced: its address layout and hash seed are shared by them."""


class Sandbox:
    """Runs Python programs in isolated processes. Made by ``make_sandbox``, used in ``async with``.

    One asyncio loop uses it, with as many concurrent callers as it likes; their owners are served
    in turn (``tools.owner``).
    """

    def __init__(
        self, launchers: Sequence[Launcher], limits: Limits, workers: int, max_sessions: int
    ) -> None:
        for name, value, most in (
            ("workers", workers, MAX_WORKERS),
            ("max_sessions", max_sessions, _MAX_SESSIONS),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 1 <= value <= most:
                raise ValueError(f"{name} ({value!r:.40}) must be a whole number in [1, {most}]")
        self.limits = limits
        self.workers = workers
        self.max_sessions = max_sessions
        self.places = FairQueue(max_sessions)
        """One for each session, copy or snapshot that is open."""
        self.slots = FairQueue(workers)
        """One for each run, grade or call in flight."""
        self.tally = Tally()
        self.reader = Reader()
        self._links: set[Link] = set()
        self._launchers = launchers
        self._launcher = launchers[0]
        self._zygotes: Zygotes | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._launcher.backend

    @property
    def isolation(self) -> str:
        """The level: "namespaces", "restricted" or "none"."""
        return self._launcher.isolation

    @property
    def limits_enforced_by(self) -> str:
        """What holds the limits of memory and processes."""
        return self._launcher.enforced_by

    @property
    def lost(self) -> tuple[str, ...]:
        """What the level promises elsewhere and this machine does not give, in words."""
        return self._launcher.lost

    async def __aenter__(self) -> Sandbox:
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
        """Start the first backend that runs a canary program and confines it.

        Raises:
            SandboxUnavailable: none does.
            RuntimeError: it was started before.
        """
        if self._loop is not None:
            raise RuntimeError("this sandbox was started before: make a new one")
        self._loop = asyncio.get_running_loop()
        refusals: list[str] = []
        for launcher in self._launchers:
            if self._closed:
                raise RuntimeError("the sandbox was closed while it started")
            self._launcher = launcher
            try:
                await self._start_backend()
            except SandboxUnavailable as error:
                refusals.append(str(error))
                continue
            self.tally, self.slots = Tally(), FairQueue(self.workers)  # the canary does not count
            for loss in self.lost:
                _log.warning("sandbox: %s: %s", self.backend, loss)
            if refusals:
                _log.warning(
                    "sandbox: %s with isolation %s, because: %s",
                    self.backend,
                    self.isolation,
                    "; ".join(refusals),
                )
            return
        why = "; ".join(refusals)
        raise SandboxUnavailable(
            f"{'no sandbox works here: ' if len(refusals) > 1 else ''}{why}. "
            "`python -m tools.sandbox doctor` tells what to do",
            tuple(refusals),
        )

    async def _start_backend(self) -> None:
        if self.isolation != "none" and (sys.platform, platform.machine()) != _SUPPORTED:
            raise SandboxUnavailable(
                f"{self.backend} works on Linux on x86_64 only (this is {sys.platform} on "
                f"{platform.machine()})"
            )
        zygotes = Zygotes(
            self._launcher,
            self.limits,
            idle=min(_MAX_IDLE, self.workers),
            recycle_after=RECYCLE_AFTER,
        )
        self._zygotes = zygotes
        try:
            await zygotes.start()
            if self.isolation != "none":
                await self._sing()
        except BaseException:
            self._zygotes = None
            await zygotes.close()
            raise

    async def _sing(self) -> None:
        """Run the canary."""
        try:
            result = await self.run(CANARY)
        except SandboxFailure as error:
            raise SandboxUnavailable(str(error)) from None
        if result.stdout != EXPECTED:
            found = ", ".join((result.stdout.splitlines() or [result.stderr])[:-1])
            raise SandboxUnavailable(
                f"{self.backend} does not confine a program ({found or result.status}: "
                f"{result.stderr[-300:]})"
            )

    async def close(self) -> None:
        """End every process of the sandbox; runs in flight fail, sessions are lost."""
        self._closed = True
        zygotes, self._zygotes = self._zygotes, None
        for link in list(self._links):
            link.close()
        if zygotes is not None:
            await zygotes.close()
        self.reader.close()

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """Run ``source`` as a program, alone in a sandbox; every process of it is dead after.

        Args:
            source: Python, run as ``__main__``; only the standard library can be imported.
            stdin: what it reads.
            files: relative path -> content, written into its working directory before.
            limits: instead of the sandbox's.
            collect: relative paths of the files to return, however the run ends; a part may have
                wildcards (``*.png``), and ``**`` is any number of folders.

        Raises:
            SandboxFailure: the sandbox failed, twice.
            ValueError: a path leads out of the working directory, the files cannot be written (see
                docs/sandbox.md), or limits exceed the sandbox's.
        """
        bounds = self._limits(limits)
        request = Request(
            "program",
            source,
            bounds,
            utf8(stdin),
            checked_files(files or {}, bounds.disk_mb),
            checked_patterns(collect),
        )
        async with self.slots:
            return self.result(await self.exchange(request), bounds)

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
        """Test a submission. It never sees an expected value, and says nothing but values.

        All calls of one submission share one process and its limits, unless each test is to have
        a fresh one. No tests: not passed.

        Args:
            source: the submission.
            tests: of any kinds; run in an order that only ``source`` decides.
            entry_point: the function that ``CallTest`` calls.
            limits: instead of the sandbox's, for each process.
            stop_at_first_failure: leave the rest ``not_run``.
            fresh_process: a process for each test, and the limits for each: nothing that one call
                leaves behind reaches another. Costs about a run for each test; they run beside
                each other as far as places are free.

        Raises:
            SandboxFailure: the sandbox failed, twice.
            ValueError: a call test without entry point, or with values that are not builtin data.
        """
        return await grading.grade(
            self,
            grading.Submission(
                source, entry_point, self._limits(limits), stop_at_first_failure, fresh_process
            ),
            tests,
        )

    def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        idle_s: float = 600.0,
        life_s: float = 3600.0,
    ) -> Session:
        """An interpreter that keeps its variables from call to call, for ``async with``.

        Args:
            files: as for ``run``.
            limits: instead of the sandbox's. ``wall_s`` and ``output_kb`` hold for each call,
                ``cpu_s`` (None: ``life_s``) for the whole life.
            idle_s: seconds without a call after which it is ended.
            life_s: seconds after which it is ended.

        Raises:
            ValueError: as ``run``, or a time is not positive.
        """
        check_session_times(idle_s, life_s)
        bounds = self._limits(limits)
        if bounds.cpu_s is None:
            bounds = replace(bounds, cpu_s=min(life_s, 3600.0))
        request = Request(
            "session",
            "",
            bounds,
            files=checked_files(files or {}, bounds.disk_mb),
            idle_s=idle_s,
            life_s=life_s,
        )
        return Session(self, request)

    async def open_link(self, request: Request) -> Link:
        """A stream to a warden that will serve a session.

        Raises:
            LostError: none waits.
            SandboxFailure: no zygote starts any more.
        """
        stream, close = await self._usable().connect()
        link = Link(stream, close, request.limits.output_kb * 1024, self._links.discard)
        self._links.add(link)
        return link

    def check_usable(self) -> None:
        """This sandbox runs, on this loop.

        Raises:
            RuntimeError: it does not.
        """
        self._usable()

    async def ready(self) -> None:
        """Wait while too many wait for their turn: who starts more work asks before."""
        await self.slots.ready()

    async def health(self) -> Health:
        """What it counted since its start, and what is under way.

        Raises:
            RuntimeError: it is not running.
        """
        return measure(self.tally, self.slots, self.places, self._usable())

    async def exchange(
        self,
        request: Request,
        channel: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> Reply:
        """One job, tried again once when it has no channel (a conversation cannot be repeated).

        Raises:
            SandboxFailure: no reply.
            LostError: no reply to a job with a channel.
        """
        zygotes = self._usable()
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

    def failure(self, what: str) -> SandboxFailure:
        """What a caller is told when the sandbox failed; it is counted."""
        self.tally.failures += 1
        return SandboxFailure(f"{self.backend}: {what}")

    def result(self, reply: Reply, limits: Limits) -> RunResult:
        """A warden's reply in the words of users."""
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

    def _limits(self, limits: Limits | None) -> Limits:
        if limits is None:
            return self.limits
        limits.check_within(self.limits)
        return limits

    def _usable(self) -> Zygotes:
        if self._loop is None or self._zygotes is None:
            state = "not started: use `async with`" if self._loop is None else "closed"
            raise RuntimeError(f"the sandbox is {state}")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the sandbox belongs to another event loop: make one sandbox for each loop"
            )
        return self._zygotes
