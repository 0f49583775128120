"""How much a server takes in at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.sandbox.errors import SandboxBusy

MAX_HELD = 1 << 30
"""Bytes of all requests together that are waiting or under way, and of answers not yet read."""
RETRY_AFTER_S = 1


class Intake:
    """Refuses requests that would make the queue, or what is held in memory, too long.

    Args:
        max_requests: waiting or under way.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._requests = 0
        self._held = 0

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Hold a request of ``size`` bytes.

        Raises:
            SandboxBusy: there is no room; nothing has begun.
        """
        if self._requests >= self._max_requests or self._held + size > MAX_HELD:
            raise SandboxBusy(
                f"{self._requests} requests of {self._held >> 20} MiB are waiting or under way"
            )
        self._requests += 1
        try:
            with self.hold(size):
                yield
        finally:
            self._requests -= 1

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold ``size`` bytes that cannot be refused, an answer's: others are, until it is read."""
        self._held += size
        try:
            yield
        finally:
            self._held -= size
