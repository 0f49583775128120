"""Protocols that local sandboxes, and sandboxes served by another machine, implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from tools.sandbox.grading.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.limits import Limits
from tools.sandbox.results import CallResult, RunResult, Verdict


class AnySnapshot(Protocol):
    """Protocol of a snapshot; ``tools.sandbox.Snapshot`` describes the methods."""

    async def __aenter__(self) -> Self:
        """Return this snapshot."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        ...

    async def close(self) -> None:
        """End the snapshot's process."""
        ...


class AnySession(Protocol):
    """Protocol of a session; ``tools.sandbox.Session`` describes the methods."""

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``.

        For a remote session, this is the state at the last answer.
        """
        ...

    async def __aenter__(self) -> Self:
        """Call ``start``."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        ...

    async def start(self) -> None:
        """Start the interpreter. Does nothing if it is running."""
        ...

    async def restart(self) -> None:
        """Start a new interpreter, without variables or files."""
        ...

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code in the interpreter, after the previous calls."""
        ...

    async def fork(self) -> AnySession:
        """Make a second session that continues from this session's current state."""
        ...

    async def snapshot(self) -> AnySnapshot:
        """Make a snapshot of this session's current state."""
        ...

    async def restore(self, snapshot: Any) -> None:
        """Continue from a snapshot that a session of the same sandbox made."""
        ...

    async def close(self) -> None:
        """End the interpreter."""
        ...


class AnySandbox(Protocol):
    """Protocol of a sandbox; ``tools.sandbox.Sandbox`` describes the methods and their errors."""

    @property
    def limits(self) -> Limits:
        """Default limits, for each run, grade and session whose caller passes no limits."""
        ...

    @property
    def backend(self) -> str:
        """Name of the backend that confines programs."""
        ...

    @property
    def isolation(self) -> str:
        """Isolation level: "namespaces", "restricted" or "none"."""
        ...

    @property
    def limits_enforced_by(self) -> str:
        """Mechanisms that enforce the limits of memory and processes."""
        ...

    @property
    def lost(self) -> tuple[str, ...]:
        """Descriptions of the isolation level's guarantees that this machine cannot give."""
        ...

    async def __aenter__(self) -> Self:
        """Call ``start``."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        ...

    async def start(self) -> None:
        """Start the sandbox, or connect to its server."""
        ...

    async def close(self) -> None:
        """End this caller's runs and sessions."""
        ...

    async def run(
        self,
        source: str,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        collect: Sequence[str] = (),
    ) -> RunResult:
        """Run a program."""
        ...

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
        """Test a submission."""
        ...

    def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        *,
        idle_s: float = 600.0,
        life_s: float = 3600.0,
    ) -> AnySession:
        """Make a session: an interpreter that keeps its variables between calls."""
        ...

    async def ready(self) -> None:
        """Wait until the queue is not full."""
        ...

    async def health(self) -> Health:
        """The sandbox's counters and gauges."""
        ...
