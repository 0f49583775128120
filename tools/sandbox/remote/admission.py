"""Limits the requests, bytes and sessions of a server, for all clients and for each client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tools.sandbox.errors import SandboxBusy
from tools.sandbox.host.session_permits import SessionPermits

MAX_HELD = 1 << 30
"""Maximum number of bytes of all waiting requests, running requests and unread answers together."""
RETRY_AFTER_S = 1


def three_quarters(number: int) -> int:
    """Three quarters of ``number``, rounded up: the part that one client is allowed to have."""
    return number - number // 4


class Admission:
    """Refuses a request if too many requests, or too many bytes, are waiting or running.

    Args:
        max_requests: maximum number of requests that wait or run.
        whole: the admission of all clients, if this is the admission of one client, which can hold
            three quarters of all bytes. None if this is the admission of all clients.
    """

    def __init__(self, max_requests: int, whole: Admission | None = None) -> None:
        self._max_requests = max_requests
        self._whole = whole
        self._requests = 0
        self._held = 0

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """A context in which a request of ``size`` bytes is admitted.

        Raises:
            SandboxBusy: the server, or this client's part of the server, is full. The request has
                not started.
        """
        max_held = three_quarters(MAX_HELD) if self._whole else MAX_HELD
        if self._requests >= self._max_requests or self._held + size > max_held:
            raise SandboxBusy(
                f"{self._requests} requests of {self._held >> 20} MiB are waiting or running"
                + (", the maximum of one client" if self._whole else "")
            )
        self._requests += 1
        try:
            with self._count(size), self._whole.take(size) if self._whole else nullcontext():
                yield
        finally:
            self._requests -= 1

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """A context in which ``size`` bytes are reserved for an answer.

        An answer is never refused, but its bytes can cause later requests to be refused.
        """
        with self._count(size), self._whole.hold(size) if self._whole else nullcontext():
            yield

    @contextmanager
    def _count(self, size: int) -> Iterator[None]:
        self._held += size
        try:
            yield
        finally:
            self._held -= size


class ClientShare(Admission):
    """Limits what one client has open at the same time, over all of its connections.

    Args:
        max_requests: maximum number of requests that wait or run.
        max_sessions: maximum number of open sessions, copies and snapshots together; also the
            maximum number of connections.
        whole: the admission of all clients.
        permits: the session permits of all clients.
    """

    def __init__(
        self, max_requests: int, max_sessions: int, whole: Admission, permits: SessionPermits
    ) -> None:
        super().__init__(max_requests, whole)
        self.permits = SessionPermits(
            max_sessions,
            f"this client has {max_sessions} open, the maximum of one client: close some, or start "
            "the server with a higher --max-client-sessions",
            permits,
        )
        self._max_sessions = max_sessions
        self._connections = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A context in which the client has one more connection.

        Raises:
            SandboxBusy: the client has too many connections.
        """
        if self._connections >= self._max_sessions:
            raise SandboxBusy(f"this client has {self._connections} connections for sessions")
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1
