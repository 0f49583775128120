"""Errors that end a run with one line instead of a traceback."""

from __future__ import annotations


class UsageError(ValueError):
    """Raised when a command line, a run file or a setting is wrong: what, where and the fix."""


class RunFailure(RuntimeError):
    """Raised when a run cannot go on, for reasons that its message explains in full."""
