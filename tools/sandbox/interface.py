"""What every sandbox offers: one of this machine, or one that another machine serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from tools.sandbox.cases import Test
from tools.sandbox.health import Health
from tools.sandbox.limits import Limits
from tools.sandbox.results import CallResult, RunResult, Verdict


class AnySnapshot(Protocol):
    """See ``tools.sandbox.Snapshot``."""

    async def __aenter__(self) -> Self:
        """Itself."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def close(self) -> None:
        """Give its process back."""
        ...


class AnySession(Protocol):
    """See ``tools.sandbox.Session``."""

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``, as far as is known."""
        ...

    async def __aenter__(self) -> Self:
        """Start it."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def start(self) -> None:
        """Start the interpreter; one that runs already goes on."""
        ...

    async def restart(self) -> None:
        """Start anew, without variables or files."""
        ...

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code where the last call left off."""
        ...

    async def fork(self) -> AnySession:
        """A second session in the state of this one."""
        ...

    async def snapshot(self) -> AnySnapshot:
        """The state as it is now."""
        ...

    async def restore(self, snapshot: Any) -> None:
        """Go on from a snapshot that a session of the same sandbox made."""
        ...

    async def close(self) -> None:
        """End the interpreter."""
        ...


class AnySandbox(Protocol):
    """See ``tools.sandbox.Sandbox``, whose methods say what these do and raise."""

    @property
    def limits(self) -> Limits:
        """Of each run that brings none of its own."""
        ...

    @property
    def backend(self) -> str:
        """What confines programs."""
        ...

    @property
    def isolation(self) -> str:
        """The level: "namespaces", "restricted" or "none"."""
        ...

    @property
    def limits_enforced_by(self) -> str:
        """What holds the limits of memory and processes."""
        ...

    @property
    def lost(self) -> tuple[str, ...]:
        """What the level promises elsewhere and this one does not give, in words."""
        ...

    async def __aenter__(self) -> Self:
        """Start it."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def start(self) -> None:
        """Start it, or connect to it."""
        ...

    async def close(self) -> None:
        """End what belongs to this caller."""
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
        """An interpreter that keeps its variables."""
        ...

    async def ready(self) -> None:
        """Wait while too many wait for their turn."""
        ...

    async def health(self) -> Health:
        """Counters and gauges."""
        ...
