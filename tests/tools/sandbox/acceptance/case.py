"""Cases of the acceptance suite: programs and submissions with their expected results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.sandbox import Limits, Status, StdioTest, Test

OK, ERROR, TIMEOUT = Status.OK, Status.ERROR, Status.TIMEOUT
MEMORY, OUTPUT, KILLED = Status.MEMORY, Status.OUTPUT, Status.KILLED

BRIEF = Limits(wall_s=1.5)
"""For programs that run until the sandbox ends them."""
ROOMY = Limits(wall_s=20.0)
"""For programs that end by themselves; long enough for a busy machine."""

FORGER = Limits(wall_s=2.0)
"""For forged submissions."""

PRELUDE = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, @MARK@)
HOST = @HOST@

def step(*words):
    print("step", *words, flush=True)

def attempt(act):
    try:
        value = act()
    except (OSError, ValueError, ImportError) as error:
        print("held", errno.errorcode.get(getattr(error, "errno", None), type(error).__name__))
    else:
        print("ESCAPED", repr(value)[:200])

def call(number, *args):
    result = libc.syscall(*(ctypes.c_long(a) for a in (number, *args)))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def forks(act, times=1):
    for _ in range(times):
        if os.fork() == 0:
            try:
                act()
            finally:
                os._exit(0)
"""
"""Names the process after its case, so that a survivor is found, and defines helpers of attacks."""


@dataclass(frozen=True)
class Program:
    """A program with its expected result. ``ESCAPED`` in its output always fails the case."""

    expectation: str
    """The expectation in words; also the case's name."""
    source: str
    statuses: tuple[Status, ...] = (OK,)
    shows: str = "^step"
    """Pattern of standard output that proves that the program reached its attack."""
    limits: Limits = ROOMY
    stdin: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    prelude: bool = True
    crowds: bool = False
    """Whether it exhausts what all processes of a user share. Without namespaces, the kernel counts
    its neighbours too, so such a program runs alone."""
    follow_up: tuple[str, str] | None = None
    """A second program, with the pattern of its whole output."""
    not_promised: Mapping[str, str] = field(default_factory=dict)
    """Isolation level -> why it does not guarantee the expectation, as documented."""

    def text(self, mark: str, host: Mapping[str, object]) -> str:
        """The program with its prelude."""
        prelude = PRELUDE if self.prelude else ""
        whole = prelude.replace("@MARK@", repr(mark.encode())) + self.source
        return whole.replace("@HOST@", repr(dict(host)))


@dataclass(frozen=True)
class Forgery:
    """A submission of ``f(x)`` that does not compute ``x * x + 7`` and must never pass a test."""

    expectation: str
    source: str
    limits: Limits = FORGER


@dataclass(frozen=True)
class ForgedGrade:
    """A submission that must not pass any of its tests, and not harm the host."""

    expectation: str
    source: str
    tests: tuple[Test, ...] = (StdioTest("3\n", "16\n"), StdioTest("11\n", "128\n"))
    entry_point: str | None = None
    limits: Limits = FORGER


@dataclass(frozen=True)
class HonestSubmission:
    """A submission of ``f(x)`` that computes ``x * x + 7`` and must pass."""

    expectation: str
    source: str
    not_promised: Mapping[str, str] = field(default_factory=dict)


Case = Program | Forgery | ForgedGrade | HonestSubmission

_REFUSED = "EPERM|EACCES|ENOSYS|EROFS|ENOENT"


def denial(expectation: str, expression: str, errors: str = _REFUSED) -> Program:
    """An expression that must raise one of these errors."""
    return Program(expectation, f"attempt(lambda: {expression})", (OK,), f"^held ({errors})\n$")


def shown(pattern: str, text: str) -> bool:
    """Whether the pattern matches ``text``; ``^`` matches at each line."""
    return re.search(pattern, text, re.MULTILINE) is not None
