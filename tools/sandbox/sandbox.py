"""The sandbox of this machine: runs programs, grades submissions and opens sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tools.sandbox.backends.canary import CANARY, EXPECTED
from tools.sandbox.backends.launcher import Launcher
from tools.sandbox.entering import Started
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.files import checked_files, checked_patterns, utf8
from tools.sandbox.grading import grade as grading
from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.host.executor import Executor
from tools.sandbox.host.job import Request
from tools.sandbox.host.session_permits import SessionPermits
from tools.sandbox.limits import Limits, check_session_times
from tools.sandbox.results import RunResult, Verdict
from tools.sandbox.session import Session

_log = logging.getLogger(__name__)

MAX_WORKERS = 128
_MAX_SESSIONS = 1 << 20


class Sandbox(Started):
    """Runs Python programs in isolated processes.

    Use ``make_sandbox`` to make one, and ``async with``.

    One sandbox serves one event loop and any number of concurrent callers; it serves their owners
    (``tools.owner``) by round-robin.
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
        self.executor = Executor(launchers[0], limits, workers, max_sessions)
        self._launchers = launchers
        self._closed = False

    @property
    def limits(self) -> Limits:
        """Default limits, for each run, grade and session whose caller passes no limits."""
        return self.executor.limits

    @property
    def workers(self) -> int:
        """Maximum number of concurrent runs, grades and session calls."""
        return self.executor.workers

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.executor.backend

    @property
    def isolation(self) -> str:
        """Isolation level: "namespaces", "restricted" or "none"."""
        return self.executor.isolation

    @property
    def limits_enforced_by(self) -> str:
        """Mechanisms that enforce the limits of memory and processes."""
        return self.executor.limits_enforced_by

    @property
    def lost(self) -> tuple[str, ...]:
        """Descriptions of the isolation level's guarantees that this machine cannot give."""
        return self.executor.launcher.lost

    async def start(self) -> None:
        """Start the first backend that can run and confine a canary program.

        Raises:
            SandboxUnavailable: no backend works on this machine.
            RuntimeError: the sandbox was started before.
        """
        self.executor.bind_loop()
        refusals: list[str] = []
        for launcher in self._launchers:
            if self._closed:
                raise RuntimeError("the sandbox was closed while it started")
            try:
                await self._start_backend(launcher)
            except SandboxUnavailable as error:
                refusals.append(str(error))
                continue
            self.executor.reset_counters()  # the canary does not count
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
            "`python -m tools.sandbox doctor` names the fixes",
            tuple(refusals),
        )

    async def _start_backend(self, launcher: Launcher) -> None:
        await self.executor.start(launcher)
        try:
            if self.isolation != "none":
                await self._run_canary()
        except BaseException:
            await self.executor.stop()
            raise

    async def _run_canary(self) -> None:
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
        """End every process of the sandbox; runs in flight fail and sessions are lost."""
        self._closed = True
        await self.executor.close()

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """Run ``source`` as a program in its own sandbox. All its processes are dead afterwards.

        Args:
            source: Python text, which runs as ``__main__``. It can import only the standard
                library.
            stdin: standard input of the program.
            files: contents by relative path. The sandbox writes these files into the working
                directory before the program starts.
            limits: limits of this run, or None for those of the sandbox.
            collect: relative paths of the files to return. They are returned whatever the run's
                status. A path component can have wildcards (``*.png``), and ``**`` matches any
                number of folders.

        Raises:
            SandboxFailure: the sandbox failed twice.
            ValueError: a path leads out of the working directory, the files cannot be written (see
                docs/sandbox.md), or ``limits`` exceeds the limits of
                the sandbox.
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
        async with self.executor.permits:
            return self.executor.result(await self.executor.exchange(request), bounds)

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
        """Test a submission. The submission never sees an expected value and returns only values.

        All calls of a submission share one process and its limits, unless ``fresh_process`` is set.
        A grade without tests does not pass.

        Args:
            source: the submission.
            tests: tests of any kinds. ``source`` alone determines their order.
            entry_point: the function that each ``CallTest`` calls.
            limits: limits of each process, or None for those of the sandbox.
            stop_at_first_failure: whether to report ``not_run`` for the tests after the first
                failure.
            fresh_process: whether each test has its own process and limits, so that side effects of
                one call reach no other. Each test then costs about one run. Tests run concurrently
                while permits are free.

        Raises:
            SandboxFailure: the sandbox failed twice.
            ValueError: there is a ``CallTest`` but no entry point, or a test's values are not
                builtin data.
        """
        return await grading.grade(
            self.executor,
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
        permits: SessionPermits | None = None,
    ) -> Session:
        """Make a session, an interpreter that keeps its variables between calls.

        Use the session with ``async with``.

        Args:
            files: as for ``run``.
            limits: limits of the session, or None for those of the sandbox. ``wall_s`` and
                ``output_kb`` apply to each call. ``cpu_s`` applies to the whole session; None means
                ``life_s`` seconds.
            idle_s: seconds without a call after which the session ends.
            life_s: seconds after which the session ends in any case.
            permits: permits for the session and its copies, or None for the sandbox's. A server
                passes the permits of one client.

        Raises:
            ValueError: as ``run``, or a time is outside its range.
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
        return Session(self.executor, request, permits or self.executor.session_permits)

    async def ready(self) -> None:
        """Wait until the queue is not full. Await it before starting more work."""
        await self.executor.permits.ready()

    async def health(self) -> Health:
        """The counters since the start and the current gauges.

        Raises:
            RuntimeError: the sandbox is not running.
        """
        return self.executor.health()

    def _limits(self, limits: Limits | None) -> Limits:
        if limits is None:
            return self.limits
        limits.check_within(self.limits)
        return limits
