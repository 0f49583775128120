"""Errors of inference servers and engines."""

from __future__ import annotations


class Unreachable(Exception):
    """Raised when a server does not answer, or reports an error of its own."""


class Lost(Unreachable):
    """Raised for a running request whose server died or stalled."""


class Broken(Unreachable):
    """Raised when a server's response is invalid: only a restart repairs the server."""


class Refused(Exception):
    """Raised when a server rejects a request as wrong.

    Attributes:
        status: the response's HTTP status; 0: none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ServerGone(Exception):
    """Raised when a server cannot be started, or ended before it was ready."""
