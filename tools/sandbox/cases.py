"""Tests of a submission, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CallTest:
    """``entry_point(*args, **kwargs)`` must equal ``expected``.

    Values are builtin data (None, bool, int, float, complex, str, bytes, list, tuple, dict, set,
    frozenset), compared by ``==``: 1 equals 1.0, a tuple is no list.
    """

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None
    """Numbers anywhere in the value may differ by so much, absolutely or relatively: at least 0."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """The submission, run as a program on ``stdin``, must print ``stdout`` and exit with 0.

    White space at the ends of lines, and empty lines at the end, do not count.
    """

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Test code that must run to its end without an exception.

    It runs in a sandbox of its own, in which the submission's functions are stubs: builtin data go
    in and come out. With an entry point only that name is one; without, every name that the code
    leaves undefined.
    """

    code: str
    setup: str = ""
    """Runs before ``code``: imports, or the task's own text with helper functions."""


Test = CallTest | StdioTest | AssertTest
