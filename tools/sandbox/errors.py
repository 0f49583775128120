"""What can go wrong that is not the program's doing."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """Raised when this machine offers no sandbox of the isolation asked for; names the fix."""

    def __init__(self, message: str, refusals: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refusals = refusals or (message,)
        """Why each backend that was tried does not work."""


class SandboxFailure(RuntimeError):
    """Raised when the sandbox itself failed, twice. Never a verdict: try again or drop the sample.

    Only the judge's side detects it; nothing that a program does can raise it.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """False: this sandbox is broken for good; make a new one."""


class SandboxBusy(SandboxFailure):
    """Raised when there was no room for a job or a session, for as long as was waited.

    Nothing has begun and nothing failed; it can be tried again.
    """


class SessionOver(RuntimeError):
    """Raised when a session has no interpreter any more; says how it ended."""


class CopyRefused(RuntimeError):
    """Raised when a session is not copied: a limit stands in the way, or the copy ended."""
