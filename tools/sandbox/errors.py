"""Errors of the sandbox, which no program causes."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """Raised when no backend with the requested isolation works here. The message names the fix."""

    def __init__(self, message: str, refusals: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refusals = refusals or (message,)
        """The reason why each tried backend does not work."""


class SandboxFailure(RuntimeError):
    """Raised when the sandbox itself failed twice. Retry or drop the sample, but give no reward.

    Only the host detects this failure; a program cannot cause it.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether another attempt may succeed. If False, this sandbox will not recover; make a new
        one."""


class SandboxBusy(SandboxFailure):
    """Raised when no permit for a job or a session became free in time.

    Nothing has started, so the caller can retry.
    """


class SessionOver(RuntimeError):
    """Raised when a session's interpreter has ended. The message says how."""


class CopyRefused(RuntimeError):
    """Raised when a session cannot be copied: a limit forbids the copy, or the copy ended."""
