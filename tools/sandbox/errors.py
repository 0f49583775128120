"""Errors of the sandbox itself. No program that runs in the sandbox can cause them."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """Raised when no backend with the requested isolation works on this machine.

    The message says how to fix this.
    """

    def __init__(self, message: str, refusals: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refusals = refusals or (message,)
        """For each backend that was tried: the reason why it does not work."""


class SandboxFailure(RuntimeError):
    """Raised when the sandbox itself failed twice.

    The caller should retry or drop the sample, but give no reward. Only the host detects this
    failure; a program cannot cause it.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether another attempt can succeed. If False, this sandbox will not recover, and the
        caller must make a new sandbox."""


class SandboxBusy(SandboxFailure):
    """Raised when no permit for a job or a session became free in time.

    Nothing has started, so the caller can retry.
    """


class SessionOver(RuntimeError):
    """Raised when a session's interpreter has ended. The message says how it ended."""


class CopyRefused(RuntimeError):
    """Raised when a session cannot be copied: a limit forbids the copy, or the copy ended."""
