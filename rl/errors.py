"""Errors that end a run with one line instead of a traceback."""

from __future__ import annotations

FAILED, STALLED, UNCLOSED = 1, 75, 76
"""Exit codes of a run that failed, of one in which nothing got further, and of one of which a part
would not end."""


class UsageError(ValueError):
    """Raised when a command line, a run file or a setting is wrong: what, where and the fix."""


class RunFailure(RuntimeError):
    """Raised when a run cannot go on, for reasons that its message explains in full."""

    exit_code = FAILED


class RunStalled(RunFailure):
    """Raised when nothing got further for so long that nothing will: what waited for what."""

    exit_code = STALLED


class Unclosed(RunFailure):
    """Raised when a part of a run that ends would not end."""

    exit_code = UNCLOSED
