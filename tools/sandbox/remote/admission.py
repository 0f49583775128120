"""Limits the number and the size of the requests that a server holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.sandbox.errors import SandboxBusy

MAX_HELD = 1 << 30
"""Maximum number of bytes of all waiting and running requests, and of unread answers, together."""
RETRY_AFTER_S = 1


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
