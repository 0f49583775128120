"""Errors that end a run with one line instead of a traceback."""

from __future__ import annotations

FAILED, STALLED, UNCLOSED = 1, 75, 76
"""Exit codes of a run that failed, that made no progress, and whose components did not close."""


class UsageError(ValueError):
    """Raised for a wrong command line, run file or setting; names what, where and the fix."""


class RunFailure(RuntimeError):
    """Raised when a run cannot continue; the message gives the full reason."""

    exit_code = FAILED


class RunStalled(RunFailure):
    """Raised when a run made no progress for too long; the message names what waits."""

    exit_code = STALLED


class Unclosed(RunFailure):
    """Raised when a component of a run did not close in time."""

    exit_code = UNCLOSED
