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
    """The program ended with an exit code other than 0, for example after an uncaught exception or
    by sys.exit(1)."""
    TIMEOUT = "timeout"
    """The run exceeded the limit of wall-clock time or of processor time."""
    MEMORY = "memory"
    """The run exceeded the memory limit, or the program did not catch a MemoryError."""
    OUTPUT = "output"
    """The run exceeded the limit of standard output or standard error."""
    KILLED = "killed"
    """A signal ended the run: the program crashed, sent the signal itself, or exceeded the limit of
    files or processes."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox failed. No result has this status: ``SandboxFailure`` is raised instead."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of running one program, whose processes are all dead."""

    status: Status
    stdout: str
    """Standard output as text. U+FFFD replaces each byte sequence that is not UTF-8."""
    stderr: str
    exit_code: int | None
    """Exit code of the program, or None if a signal ended it."""
    signal: int | None
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    """Peak memory in MiB of the process that used the most. A bare interpreter uses about 12."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    detail: str = ""
    """Description of the limit that ended the run; empty if no limit did."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path of the files that the argument ``collect`` requested."""
    files_left_out: Mapping[str, str] = field(default_factory=dict)
    """For each requested file that is not returned: the reason, by path. The path "..." stands for
    all further files."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call of a session."""

    status: Status
    """How the call ended. After ``timeout``, the session continues unless ``over`` is true."""
    stdout: str
    """Standard output, truncated at ``limits.output_kb``."""
    stderr: str
    value: str | None
    """``repr`` of the value of the code's last line. None unless that line is an expression whose
    value is not None."""
    error: str
    """Traceback of an uncaught exception, or empty. The exception ends the call but not the
    session."""
    wall_s: float
    over: bool
    """Whether the interpreter ended with this call."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    text_truncated: bool = False
    """Whether ``value`` or ``error`` was truncated."""
    detail: str = ""
    """Description of the limit that the call exceeded, or of how the interpreter ended. Otherwise
    empty."""
    exit_code: int | None = None
    """Exit code of the interpreter if the interpreter exited, otherwise None."""
    signal: int | None = None

    @property
    def shown(self) -> str:
        """The text that a notebook shows below a cell: output, then value or traceback."""
        parts = [
            _with_mark(self.stdout, self.stdout_truncated),
            _with_mark(self.stderr, self.stderr_truncated),
            _with_mark(self.error or self.value or "", self.text_truncated),
        ]
        return "\n".join(part.removesuffix("\n") for part in parts if part)


def _with_mark(text: str, truncated: bool) -> str:
    return f"{text}\n[truncated]" if truncated else text


class OutcomeKind(StrEnum):
    """How one test of a submission ended."""

    PASSED = "passed"
    WRONG = "wrong"
    """The submission's value differs from the expected value, or an assertion failed."""
    ERROR = "error"
    """An exception was raised, the entry point is missing, or the value is not builtin data."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"
    """The process ended during the test, by a signal or by exiting."""
    NOT_RUN = "not_run"
    """The test did not run, because an earlier failure ended the process or the grade."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one test."""

    kind: OutcomeKind
    value: Any = None
    """The value that the submission returned (``CallTest``) or the text that it printed
    (``StdioTest``). Show this value to the agent for public tests only."""
    error_type: str = ""
    message: str = ""
    line: int | None = None
    """Line of the exception in the submission or, if the test code raised, in the test code."""

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.kind is OutcomeKind.PASSED


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a grade. The grade passes if there is at least one test and every test passed."""

    passed: bool
    outcomes: tuple[Outcome, ...]
    """The outcome of each test, in the order of the tests."""
    wall_s: float
    isolation: str
    backend: str
    limits_enforced_by: str
    detail: str = ""
    """Reason why the grade failed as a whole: there are no tests, the submission does not load, or
    a process exceeded a limit. Otherwise empty."""
    stdout: str = ""
    """The first 4000 characters of the submission's standard output."""

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
