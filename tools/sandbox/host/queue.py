"""A fair queue for a bounded number of permits."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Hashable

from tools.owner import current_owner

MAX_WAITING = 1024
"""Number of waiting callers from which on the queue counts as full."""
_WAITS_KEPT = 1024


class FairQueue:
    """A semaphore that serves the owners of waiting callers by round-robin.

    Callers of one owner (see ``tools.owner``) are served in order of arrival. An owner that asks
    for hundreds of permits therefore delays another owner by only one turn. Use ``async with``, or
    ``acquire`` and ``release``.

    Args:
        permits: maximum number of permits in use.
        max_waiting: number of waiting callers at which the queue counts as full. A full queue still
            accepts callers, so a caller should check ``full`` or await ``ready`` first.
    """

    def __init__(self, permits: int, max_waiting: int = MAX_WAITING) -> None:
        self.total = permits
        self.max_waiting = max_waiting
        self.waiting = 0
        self.served = 0
        """Number of permits granted so far."""
        self.waited_s = 0.0
        """Total seconds that callers waited for the permits that they got."""
        self._free = permits
        # Owners with waiting callers; the next owner to serve comes first.
        self._owners: OrderedDict[Hashable, dict[asyncio.Future[None], None]] = OrderedDict()
        self._waits: deque[float] = deque(maxlen=_WAITS_KEPT)
        self._room = asyncio.Event()
        self._room.set()
        self._busy_s = 0.0
        self._busy_since = 0.0

    @property
    def in_flight(self) -> int:
        """Number of permits in use."""
        return self.total - self._free

    @property
    def full(self) -> bool:
        """Whether at least ``max_waiting`` callers wait."""
        return self.waiting >= self.max_waiting

    @property
    def busy_s(self) -> float:
        """Seconds during which at least one permit was in use."""
        running = time.monotonic() - self._busy_since if self.in_flight else 0.0
        return self._busy_s + running

    def wait_p95_s(self) -> float:
        """95th percentile of the last 1024 waits, in seconds."""
        waits = sorted(self._waits)
        return waits[int(0.95 * (len(waits) - 1))] if waits else 0.0

    async def ready(self) -> None:
        """Wait until the queue is not full."""
        while self.full:
            await self._room.wait()

    async def acquire(self) -> None:
        """Wait for a permit and take it.

        If the caller is cancelled while it waits, the next caller gets its turn.
        """
        waited = 0.0
        if not self._free:
            waited = await self._turn(current_owner())
            self.waited_s += waited
        elif self._free == self.total:
            self._busy_since = time.monotonic()
            self._free -= 1
        else:
            self._free -= 1
        self.served += 1
        self._waits.append(waited)

    async def _turn(self, owner: Hashable) -> float:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owners.setdefault(owner, {})[turn] = None
        self._count(1)
        since = time.monotonic()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(owner, turn)
            else:  # the permit was granted to this cancelled caller
                self.release()
            raise
        return time.monotonic() - since

    def release(self) -> None:
        """Return a permit. The first waiting caller of the next owner gets the permit."""
        while self._owners:
            owner, turns = self._owners.popitem(last=False)
            turn = next(iter(turns))
            del turns[turn]
            if turns:
                self._owners[owner] = turns
            self._count(-1)
            if not turn.done():  # done: its caller was just cancelled
                turn.set_result(None)
                return
        self._free += 1
        if self._free == self.total:
            self._busy_s += time.monotonic() - self._busy_since

    def _forget(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        turns = self._owners.get(owner, {})
        if turn not in turns:
            return
        del turns[turn]
        if not turns:
            del self._owners[owner]
        self._count(-1)

    def _count(self, change: int) -> None:
        self.waiting += change
        if self.full:
            self._room.clear()
        else:
            self._room.set()

    async def __aenter__(self) -> None:
        """Call ``acquire``."""
        await self.acquire()

    async def __aexit__(self, *error: object) -> None:
        """Call ``release``."""
        self.release()
