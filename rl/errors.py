"""Errors that end a run with one line instead of a traceback."""

from __future__ import annotations

from agents.policy import PolicyFailure
from envs.datasets import DatasetUnavailable
from envs.episode import EnvFailure
from tools.sandbox.errors import SandboxUnavailable

FAILED, STALLED, UNCLOSED, INTERRUPTED = 1, 75, 76, 130
"""Exit codes. FAILED: the run failed. STALLED: the run made no progress. UNCLOSED: a component of
the run did not close. INTERRUPTED: Ctrl-C or SIGTERM stopped the run."""


class UsageError(ValueError):
    """Raised for a wrong command line, run file or setting. The message gives the fix."""


class RunFailure(RuntimeError):
    """Raised when a run cannot continue; the message gives the full reason."""

    exit_code = FAILED
    asked_to_stop = False
    """Whether the run had been asked to stop before it failed."""


class RunStalled(RunFailure):
    """Raised when a run made no progress for too long. The message names what waits."""

    exit_code = STALLED


class Unclosed(RunFailure):
    """Raised when a component of a run did not close in time."""

    exit_code = UNCLOSED


REFUSED_INPUTS = (UsageError, DatasetUnavailable, SandboxUnavailable)
"""Errors of refused inputs: wrong settings, a model or data that cannot be loaded, and an
unavailable sandbox."""
EXPECTED_ERRORS = (*REFUSED_INPUTS, RunFailure, EnvFailure, PolicyFailure)
"""Errors that end a command with one line; any other error is a bug and shows its traceback."""
