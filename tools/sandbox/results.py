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
    """The program ended with exit code 0."""
    ERROR = "error"
    """The program ended with another exit code, for example by an uncaught exception or
    sys.exit(1)."""
    TIMEOUT = "timeout"
    """The run exceeded the limit of wall or processor time."""
    MEMORY = "memory"
    """The run exceeded the limit of memory, or a MemoryError was not caught."""
    OUTPUT = "output"
    """The run exceeded the limit of standard output or standard error."""
    KILLED = "killed"
    """A signal ended the run, because of a crash, the program itself, or the limit of files or
    processes."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox failed. This is raised as ``SandboxFailure`` and never part of a result."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one program. All processes of the run are dead."""

    status: Status
    stdout: str
    """Standard output, in which undecodable bytes are replaced."""
    stderr: str
    exit_code: int | None
    """Exit code of the program, or None if a signal ended it."""
    signal: int | None
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    """Peak memory of the largest process in MiB. A bare interpreter takes about 12."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    detail: str = ""
    """Description of the limit that ended the run; empty if none did."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the files that ``collect`` requested, by path."""
    files_left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons why requested files are not returned, by path. "..." stands for further files."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call of a session."""

    status: Status
    """How the call ended. ``timeout`` also means that it was interrupted and the session
    continues."""
    stdout: str
    """Standard output, truncated at ``limits.output_kb``."""
    stderr: str
    value: str | None
    """``repr`` of the last line's value, if the line is an expression whose value is not None."""
    error: str
    """Traceback of an uncaught exception. The exception ends the call but not the session."""
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
    """Description of a limit, or of the end of the interpreter."""
    exit_code: int | None = None
    """Exit code of the interpreter if it exited, otherwise None."""
    signal: int | None = None

    @property
    def shown(self) -> str:
        """The text that a notebook shows below the cell: output, then value or traceback."""
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
    """The value differs from the expected one, or an assertion failed."""
    ERROR = "error"
    """An exception, a missing entry point, or a value that is not builtin data."""
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
    """The value that the submission returned (calls) or printed (stdin). Show it for public tests
    only."""
    error_type: str = ""
    message: str = ""
    line: int | None = None
    """Line of the submission or, if the test code raised, of the test code."""

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.kind is OutcomeKind.PASSED


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a grade. It passes if there were tests and each of them passed."""

    passed: bool
    outcomes: tuple[Outcome, ...]
    """The outcome of each test, in the order of the tests."""
    wall_s: float
    isolation: str
    backend: str
    limits_enforced_by: str
    detail: str = ""
    """Reason why the whole grade failed: no tests, a submission that does not load, or a limit.
    Empty if it did not."""
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
