"""The kinds of tests: calls, programs with standard input and output, and assertions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXACT, APPS, LIVECODEBENCH = RULES = ("exact", "apps", "livecodebench")
"""By whose rules an answer equals the expected one: by ``==``, or as in the graders of APPS (and
verl) or LiveCodeBench, see ``compare``."""


@dataclass(frozen=True, slots=True)
class CallTest:
    """Test that the call ``entry_point(*args, **kwargs)`` returns a value equal to ``expected``.

    Values are builtin data (None, bool, int, float, complex, str, bytes, list, tuple, dict, set,
    frozenset). They are compared by ``==``: 1 equals 1.0, and a tuple does not equal a list.
    """

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    """Allowed difference of numbers anywhere in the value: absolute or relative, whichever allows
    more. At least 0."""
    rules: str = EXACT
    """One of ``RULES``."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """Test that the submission, run as a program on ``stdin``, prints ``stdout`` and exits with 0.

    White space at line ends and empty lines at the end are ignored.
    """

    stdin: str
    stdout: str
    rules: str = EXACT
    """One of ``RULES``. All but "exact" compare words, and numbers by value."""


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Test code. The test passes if the code finishes without an exception.

    The test code runs in a separate sandbox, in which the submission's functions are stubs that
    take and return builtin data. If the grade has an entry point, only that name is a stub.
    Otherwise every undefined name of the test code is a stub.
    """

    code: str
    setup: str = ""
    """Code that runs before ``code``, such as imports or the task's prompt with helper
    functions."""


Test = CallTest | StdioTest | AssertTest
