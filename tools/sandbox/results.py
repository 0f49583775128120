"""What a run and a grade report."""

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
    """The limit of wall or processor time."""
    MEMORY = "memory"
    """The limit of memory, or an uncaught MemoryError."""
    OUTPUT = "output"
    """The limit of standard output or standard error."""
    KILLED = "killed"
    """A signal: a crash, the program itself, or a limit of files."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox's own fault: carried by ``SandboxFailure``, never by a result."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One program's run, after its last process is dead."""

    status: Status
    stdout: str
    """Undecodable bytes are replaced."""
    stderr: str
    exit_code: int | None
    """None where a signal ended it."""
    signal: int | None
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    """Largest of its processes; a bare interpreter is about 12."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    detail: str = ""
    """More about a limit that ended it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What ``collect`` named and is a plain file, by its path."""
    files_left_out: Mapping[str, str] = field(default_factory=dict)
    """What ``collect`` named and is not returned, and why; "..." stands for more of them."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """One call of a session."""

    status: Status
    """``timeout`` also where the call was interrupted and the session goes on."""
    stdout: str
    """Its beginning, if it was longer than ``limits.output_kb``."""
    stderr: str
    value: str | None
    """``repr`` of the last line's value, where that is an expression and not None."""
    error: str
    """The traceback of an uncaught exception, which ends the call and not the session."""
    wall_s: float
    over: bool
    """Whether the interpreter ended with this call."""
    isolation: str
    backend: str
    limits_enforced_by: str
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    text_truncated: bool = False
    """Whether the value, or the traceback, was longer."""
    detail: str = ""
    """More about a limit or an end."""
    exit_code: int | None = None
    """Where the interpreter ended by itself."""
    signal: int | None = None

    @property
    def shown(self) -> str:
        """What a notebook would show below the cell: output, then the value or the traceback."""
        parts = [
            _with_mark(self.stdout, self.stdout_truncated),
            _with_mark(self.stderr, self.stderr_truncated),
            _with_mark(self.error or self.value or "", self.text_truncated),
        ]
        return "\n".join(part.removesuffix("\n") for part in parts if part)


def _with_mark(text: str, truncated: bool) -> str:
    return f"{text}\n[truncated]" if truncated else text


class OutcomeKind(StrEnum):
    """How one test came out."""

    PASSED = "passed"
    WRONG = "wrong"
    """Another value than expected, or a failed assertion."""
    ERROR = "error"
    """An exception, a missing entry point, a value that is not builtin data."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"
    """The process ended during the test, by a signal or an exit of its own."""
    NOT_RUN = "not_run"
    """An earlier failure ended the process, or the grade stopped there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test's outcome, in the order in which the tests were given."""

    kind: OutcomeKind
    value: Any = None
    """What the candidate answered (calls) or printed (stdin): show it for public tests."""
    error_type: str = ""
    message: str = ""
    line: int | None = None
    """Line of the submission, or of the test code where that is what raised."""

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.kind is OutcomeKind.PASSED


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's word on a submission. ``passed``: there were tests, and each one passed."""

    passed: bool
    outcomes: tuple[Outcome, ...]
    wall_s: float
    isolation: str
    backend: str
    limits_enforced_by: str
    detail: str = ""
    """What failed as a whole: no tests, a submission that does not load, a limit at its end."""
    stdout: str = ""
    """What the submission printed while it was called; its first 4000 characters."""

    @property
    def num_passed(self) -> int:
        """How many tests passed."""
        return sum(outcome.passed for outcome in self.outcomes)


def status_of(reply: dict[str, Any], stderr: str, cpu_limit_s: int) -> Status:
    """How the run ended, from what its warden saw."""
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
