"""Which server a request goes to, and when: each computes so many at once, most others wait here.

A request that waits at a server waits in the order of its arrival, and nobody can tell how long.
Here the episode that has taken the most turns comes first, of equals the one that was announced
first. Episodes that are nearly done thereby end, and with them the groups and steps that wait for
them, while their keys and values are still in the server's cache. None waits for ever: those before
it have turns left to take, and new ones come after it.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.policy import PolicyFailure
from agents.vllm.member import Member

_CROWDED = 1.5
"""A server is passed by when it has this many times the requests of the least busy one."""
SPARE = 1.0
"""Requests that a server is sent beyond those that it computes at once, as a share of these. They
take the places of those that end, which would stay empty until an answer is read here and the next
request is read there: all end together where all sample equally many tokens."""
_LOOK_S = 1.0
"""How often one that waits looks whether a server came back."""
_DRAIN_LOOK_S = 0.01


@dataclass(slots=True, eq=False)
class Request:
    """One completion to be placed; placed again when its server is lost."""

    session: str | None
    prompt: int
    """Hash of a first turn's prompt: the members of a group have the same. 0 where it is known
    already where the request should go."""
    rank: tuple[int, int, int]
    """The least is served first."""
    asked_at: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0
    """Seconds that it waited for room, so far."""
    member: asyncio.Future[Member] | None = None

    @property
    def priority(self) -> int:
        """For a server's own queue: of two that wait there the one with the least comes first."""
        return self.rank[0]


@dataclass(slots=True)
class _Session:
    """What is known of an episode."""

    order: int
    num_turns: int = 0
    """Turns that it has asked for."""
    home: Member | None = None
    """Whose prefix cache has its tokens."""
    num_waiting: int = 0
    waits_since: float = 0.0
    queued_s: float = 0.0
    """Seconds that at least one of its requests waited; without those since ``waits_since``."""


class Dispatcher:
    """Places requests on servers, on each as many as it computes at once and a few to follow.

    An episode stays where its earlier turns were, whose keys and values are cached there, and the
    members of a group where the first of them went, unless that server is lost or much busier than
    another.

    Args:
        members: the servers.
        max_num_seqs: what one computes at once, where it does not tell.
        stuck_s: deadline of the queue's moving, in seconds.
        spare: what each is sent beyond that, as a share of it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        max_num_seqs: int,
        stuck_s: float,
        spare: float = SPARE,
    ) -> None:
        self._members = members
        self._max_num_seqs = max_num_seqs
        self._stuck_s = stuck_s
        self._spare = spare
        self._running: Counter[Member] = Counter()
        self._waiting: list[Request] = []
        self._sessions: dict[str, _Session] = {}
        self._homes: dict[int, Member] = {}
        self._numbers = itertools.count()
        self._moved_at = 0.0
        self._held = False
        self._placed = 0
        self._queued_s = 0.0

    def begin(self, sessions: Sequence[str]) -> None:
        """Episodes that are about to ask, in the order in which they count."""
        for session in sessions:
            self._session(session)

    def end(self, session: str) -> None:
        """An episode is over."""
        self._sessions.pop(session, None)

    def forget(self) -> None:
        """No server has anything cached any more."""
        self._homes.clear()
        for session in self._sessions.values():
            session.home = None

    def queued_s(self, session: str) -> float:
        """Seconds in which a request of an episode waited for room, so far."""
        known = self._sessions.get(session)
        if known is None:
            return 0.0
        waits = time.monotonic() - known.waits_since if known.num_waiting else 0.0
        return known.queued_s + waits

    def take_mean_queued_s(self) -> float:
        """Seconds that a request waited, on average of those placed since the last call."""
        mean = self._queued_s / self._placed if self._placed else 0.0
        self._placed, self._queued_s = 0, 0.0
        return mean

    def request(self, prompt: list[int], session: str | None) -> Request:
        """A request to be placed."""
        number = next(self._numbers)
        known = self._session(session) if session is not None else None
        at_home = len(self._members) == 1 or (known is not None and known.home is not None)
        first = 0 if at_home else hash(tuple(prompt))
        if known is None:
            return Request(None, first, (0, number, number))
        request = Request(session, first, (-known.num_turns, known.order, number))
        known.num_turns += 1
        return request

    async def place(self, request: Request) -> Member:
        """A server with room for ``request``; the caller gives the room back by :meth:`free`.

        Raises:
            PolicyFailure: no server is left, or the queue did not move within its deadline.
        """
        request.member = asyncio.get_running_loop().create_future()
        request.asked_at = time.monotonic()
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.rank)
        self._dispatch()
        self._begins_to_wait(request)
        try:
            while not request.member.done():
                await self._look(request, request.member)
        except BaseException:
            if not request.member.done():
                self._waiting.remove(request)
            elif not request.member.cancelled():
                self.free(request.member.result())
            raise
        finally:
            self._ends_to_wait(request)
        return request.member.result()

    def free(self, member: Member) -> None:
        """A request that was placed has ended."""
        self._running[member] -= 1
        self._dispatch()

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """While it is entered no request is placed, and none that was runs any more.

        Raises:
            PolicyFailure: those that run did not end within ``stuck_s``.
        """
        self._held, end = True, time.monotonic() + self._stuck_s
        try:
            while any(self._running.values()):
                if time.monotonic() > end:
                    message = f"running requests did not end for {self._stuck_s:g} s"
                    raise PolicyFailure(message, retryable=True)
                await asyncio.sleep(_DRAIN_LOOK_S)
            yield
        finally:
            self._held, self._moved_at = False, time.monotonic()
            self._dispatch()

    def _session(self, name: str) -> _Session:
        if name not in self._sessions:
            self._sessions[name] = _Session(next(self._numbers))
        return self._sessions[name]

    def _begins_to_wait(self, request: Request) -> None:
        known = self._sessions.get(request.session or "")
        if known is not None:
            if not known.num_waiting:
                known.waits_since = request.asked_at
            known.num_waiting += 1

    def _ends_to_wait(self, request: Request) -> None:
        now = time.monotonic()
        request.queued_s += now - request.asked_at
        assert request.member is not None
        if request.member.done() and not request.member.cancelled():
            self._placed += 1
            self._queued_s += now - request.asked_at
        known = self._sessions.get(request.session or "")
        if known is not None and known.num_waiting:
            known.num_waiting -= 1
            if not known.num_waiting:
                known.queued_s += now - known.waits_since

    async def _look(self, request: Request, member: asyncio.Future[Member]) -> None:
        """Wait until it is placed, a server comes back, or it is time to look again.

        Raises:
            PolicyFailure: as :meth:`place`.
        """
        broken = [server.broken for server in self._members]
        if all(broken):
            raise PolicyFailure(f"no server is left: {broken[0]}", retryable=False)
        left = max(request.asked_at, self._moved_at) + self._stuck_s - time.monotonic()
        if left <= 0:
            raise PolicyFailure(
                f"no server had room: none ended a request for {self._stuck_s:g} s", retryable=True
            )
        there = [server.is_ready for server in self._members]
        lost = [m for m in self._members if not m.is_ready and m.broken is None]
        changes = [asyncio.ensure_future(server.changed()) for server in lost]
        any_of: set[asyncio.Future[Any]] = {member, *changes}
        try:
            await asyncio.wait(
                any_of, timeout=min(left, _LOOK_S), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for change in changes:
                change.cancel()
        # Whatever else makes room places the next one itself.
        if there != [server.is_ready for server in self._members]:
            self._dispatch()

    def _dispatch(self) -> None:
        """Place those that wait, in their order, while there is room."""
        number = 0 if not self._held else len(self._waiting)
        while number < len(self._waiting):
            free = [m for m in self._members if m.is_ready and self._room(m) > 0]
            if not free:
                return
            request = self._waiting[number]
            chosen = self._choose(request, free)
            if chosen is None:
                number += 1
                continue
            del self._waiting[number]
            self._running[chosen] += 1
            self._moved_at = time.monotonic()
            if request.prompt:
                self._homes[request.prompt] = chosen
            if request.session in self._sessions:
                self._sessions[request.session].home = chosen
            assert request.member is not None
            request.member.set_result(chosen)

    def _room(self, member: Member) -> int:
        computed = member.max_num_seqs or self._max_num_seqs
        return math.ceil(computed * (1 + self._spare)) - self._running[member]

    def _choose(self, request: Request, free: Sequence[Member]) -> Member | None:
        """Its home, or the least busy of ``free``; None where it should wait for its home."""
        known = self._sessions.get(request.session or "")
        home = (known.home if known is not None else None) or self._homes.get(request.prompt)
        idle = min(free, key=lambda member: self._running[member])
        if home is None or not home.is_ready:
            return idle
        if self._running[home] > _CROWDED * (self._running[idle] + 1):
            return idle
        return home if home in free else None
