"""Permits for open sessions: of a whole sandbox, or of one client of a server."""

from __future__ import annotations

import asyncio

from tools.sandbox.errors import SandboxBusy
from tools.sandbox.host.queue import FairQueue

_PERMIT_S = 30.0
"""Maximum seconds that a new session waits for a permit."""


class SessionPermits:
    """Limits the number of open sessions, copies and snapshots.

    Args:
        most: maximum number of permits in use.
        when_full: text for the error, which says what is open and what the caller can do.
        whole: the sandbox's permits if these are one client's permits, else None. Taking one of
            these permits also takes one of ``whole``.
    """

    def __init__(self, most: int, when_full: str, whole: SessionPermits | None = None) -> None:
        self._queue = FairQueue(most)
        self._when_full = when_full
        self._whole = whole

    @property
    def in_flight(self) -> int:
        """Number of permits in use."""
        return self._queue.in_flight

    async def acquire(self) -> None:
        """Wait for a permit and take it.

        Raises:
            SandboxBusy: no permit became free within 30 s.
        """
        try:
            async with asyncio.timeout(_PERMIT_S):
                await self._queue.acquire()
        except TimeoutError:
            raise SandboxBusy(
                f"no session has ended within {_PERMIT_S:g} s, and {self._when_full}"
            ) from None
        if self._whole is None:
            return
        try:
            await self._whole.acquire()
        except BaseException:
            self._queue.release()
            raise

    def release(self) -> None:
        """Return a permit."""
        self._queue.release()
        if self._whole is not None:
            self._whole.release()
