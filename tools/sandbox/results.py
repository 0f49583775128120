"""Results of runs, session calls and grades."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a run ended."""

    OK = "ok"
    """Exit code 0."""
    ERROR = "error"
    """Another exit code: an uncaught exception, sys.exit(1)."""
    TIMEOUT = "timeout"
    """Over the limit of wall or processor time."""
    MEMORY = "memory"
    """Over the limit of memory, or an uncaught MemoryError."""
    OUTPUT = "output"
    """Over the limit of standard output or standard error."""
    KILLED = "killed"
    """Ended by a signal: a crash, the program itself, or the limit of files or processes."""
    SANDBOX_FAILURE = "sandbox_failure"
    """A fault of the sandbox: raised as ``SandboxFailure``, never part of a result."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one program; every process of the run is dead."""

    status: Status
    stdout: str
    """Undecodable bytes are replaced."""
    stderr: str
    exit_code: int | None
    """None if a signal ended the program."""
    signal: int | None
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    """Of the largest process; a bare interpreter takes about 12."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    detail: str = ""
    """The limit that ended the run, in words."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of the plain files that ``collect`` requested."""
    files_left_out: Mapping[str, str] = field(default_factory=dict)
    """Path -> reason for requested files that are not returned; "..." stands for further ones."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call of a session."""

    status: Status
    """``timeout`` also if the call was interrupted and the session continues."""
    stdout: str
    """Truncated at ``limits.output_kb``."""
    stderr: str
    value: str | None
    """``repr`` of the last line's value, if the line is an expression and its value not None."""
    error: str
    """Traceback of an uncaught exception, which ends the call but not the session."""
    wall_s: float
    over: bool
    """Whether the interpreter ended with this call."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    text_truncated: bool = False
    """Whether the value or the traceback was truncated."""
    detail: str = ""
    """The limit or the end of the interpreter, in words."""
    exit_code: int | None = None
    """Set if the interpreter exited."""
    signal: int | None = None

    @property
    def shown(self) -> str:
        """Text that a notebook would show below the cell: output, then value or traceback."""
        parts = [
            _with_mark(self.stdout, self.stdout_truncated),
            _with_mark(self.stderr, self.stderr_truncated),
            _with_mark(self.error or self.value or "", self.text_truncated),
        ]
        return "\n".join(part.removesuffix("\n") for part in parts if part)


def _with_mark(text: str, truncated: bool) -> str:
    return f"{text}\n[truncated]" if truncated else text


class OutcomeKind(StrEnum):
    """Kind of a test's outcome."""

    PASSED = "passed"
    WRONG = "wrong"
    """A value that differs from the expected one, or a failed assertion."""
    ERROR = "error"
    """An exception, a missing entry point, a value that is not builtin data."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"
    """The process ended during the test, by a signal or by exiting."""
    NOT_RUN = "not_run"
    """An earlier failure ended the process or the grade."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one test."""

    kind: OutcomeKind
    value: Any = None
    """The value that the submission returned (calls) or printed (stdin): show public tests only."""
    error_type: str = ""
    message: str = ""
    line: int | None = None
    """Line of the submission, or of the test code if the test code raised."""

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.kind is OutcomeKind.PASSED


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a grade. ``passed``: there were tests, and each one passed."""

    passed: bool
    outcomes: tuple[Outcome, ...]
    """One per test, in the order of the tests."""
    wall_s: float
    isolation: str
    backend: str
    limits_enforced_by: str
    detail: str = ""
    """Why the whole grade failed: no tests, a submission that does not load, an exceeded limit."""
    stdout: str = ""
    """The first 4000 characters that the submission printed."""

    @property
    def num_passed(self) -> int:
        """Number of passed tests."""
        return sum(outcome.passed for outcome in self.outcomes)


def status_of(reply: dict[str, Any], stderr: str, cpu_limit_s: int) -> Status:
    """The status of a run, from its supervisor's report."""
    if reply["ended"]:
        return Status(reply["ended"])
    number = reply["signal"]
    if number is not None:
        out_of_cpu = number == signal.SIGKILL and reply["cpu_s"] >= cpu_limit_s
        return Status.TIMEOUT if number == signal.SIGXCPU or out_of_cpu else Status.KILLED
    if reply["exit_code"] == 0:
        return Status.OK
    last = stderr.rstrip().rpartition("\n")[2]
    return Status.MEMORY if last.startswith("MemoryError") else Status.ERROR
