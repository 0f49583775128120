"""Who is served next: a fair queue for a bounded number of places."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Hashable

from tools.owner import current_owner

MAX_WAITING = 1024
"""Callers that may wait before ``ready`` holds further ones back."""
_WAITS_KEPT = 1024


class FairQueue:
    """So many places; whoever finds none waits, and owners are served in turn.

    One owner's callers are served in the order of their coming. An owner that asks for hundreds of
    places delays another by one turn: see ``tools.owner`` for who is one. Use it by ``async with``,
    or by ``acquire`` and ``release``.

    Args:
        places: how many may be taken at once.
        max_waiting: from so many waiting callers on, the queue is full. It still takes who comes:
            to ask ``full`` or ``ready`` before is the caller's part.
    """

    def __init__(self, places: int, max_waiting: int = MAX_WAITING) -> None:
        self.places = places
        self.max_waiting = max_waiting
        self.waiting = 0
        self.served = 0
        """Places given so far."""
        self.waited_s = 0.0
        """Seconds that those who got one had waited, in all."""
        self._free = places
        # An owner stands here while it has waiting callers, next in turn first.
        self._owners: OrderedDict[Hashable, dict[asyncio.Future[None], None]] = OrderedDict()
        self._waits: deque[float] = deque(maxlen=_WAITS_KEPT)
        self._room = asyncio.Event()
        self._room.set()
        self._busy_s = 0.0
        self._busy_since = 0.0

    @property
    def in_flight(self) -> int:
        """Places that are taken."""
        return self.places - self._free

    @property
    def full(self) -> bool:
        """Whether as many wait as should."""
        return self.waiting >= self.max_waiting

    @property
    def busy_s(self) -> float:
        """Seconds in which a place was taken."""
        running = time.monotonic() - self._busy_since if self.in_flight else 0.0
        return self._busy_s + running

    def wait_p95_s(self) -> float:
        """95th percentile of the last thousand waits, in seconds."""
        waits = sorted(self._waits)
        return waits[int(0.95 * (len(waits) - 1))] if waits else 0.0

    async def ready(self) -> None:
        """Wait until the queue is not full. It moves as places are given back."""
        while self.full:
            await self._room.wait()

    async def acquire(self) -> None:
        """Take a place, when it is this caller's turn. Cancelling gives the turn to the next."""
        waited = 0.0
        if not self._free:
            waited = await self._turn(current_owner())
            self.waited_s += waited
        elif self._free == self.places:
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
            else:  # the place was given, and nobody is left to take it
                self.release()
            raise
        return time.monotonic() - since

    def release(self) -> None:
        """Give a place back: it goes to the next owner's first caller."""
        while self._owners:
            owner, turns = self._owners.popitem(last=False)
            turn = next(iter(turns))
            del turns[turn]
            if turns:
                self._owners[owner] = turns
            self._count(-1)
            if not turn.done():  # else cancelled just now: it will find itself gone
                turn.set_result(None)
                return
        self._free += 1
        if self._free == self.places:
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
        """Take a place."""
        await self.acquire()

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        self.release()
