"""Errors of inference servers and engines."""

from __future__ import annotations


class Unreachable(Exception):
    """Raised when a server does not answer, or reports an internal error."""


class Lost(Unreachable):
    """Raised for a running request whose server died or stalled."""


class Broken(Unreachable):
    """Raised when a server's response is invalid, so that only a restart repairs the server."""


class Refused(Exception):
    """Raised when a server rejects a request as wrong.

    Attributes:
        status: the response's HTTP status, or 0 if there is none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ServerGone(Exception):
    """Raised when a server cannot be started, or ended before it was ready."""
