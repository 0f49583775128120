"""Limits what a server holds: requests of all clients, and sessions of each client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.sandbox.errors import SandboxBusy
from tools.sandbox.host.session_permits import SessionPermits

MAX_HELD = 1 << 30
"""Maximum number of bytes of all waiting and running requests, and of unread answers, together."""
RETRY_AFTER_S = 1


class ClientShare:
    """What one client may have open, over all of its connections.

    Args:
        most: maximum number of open sessions, copies and snapshots, and of connections.
        whole: the permits of all clients.
    """

    def __init__(self, most: int, whole: SessionPermits) -> None:
        self.permits = SessionPermits(
            most,
            f"this client has {most} open, the maximum of one client: close some, or start the "
            "server with a higher --max-client-sessions",
            whole,
        )
        self._most = most
        self._connections = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Count a connection.

        Raises:
            SandboxBusy: the client has too many connections.
        """
        if self._connections >= self._most:
            raise SandboxBusy(f"this client has {self._connections} connections for sessions")
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1


class Admission:
    """Refuses requests if the server has too many of them, or too many bytes.

    Args:
        max_requests: maximum number of requests that wait or run.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._requests = 0
        self._held = 0

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Admit a request of ``size`` bytes.

        Raises:
            SandboxBusy: the server is full. The request has not started.
        """
        if self._requests >= self._max_requests or self._held + size > MAX_HELD:
            raise SandboxBusy(
                f"{self._requests} requests of {self._held >> 20} MiB are waiting or running"
            )
        self._requests += 1
        try:
            with self.hold(size):
                yield
        finally:
            self._requests -= 1

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes for an answer.

        This is never refused, but later requests may be.
        """
        self._held += size
        try:
            yield
        finally:
            self._held -= size
