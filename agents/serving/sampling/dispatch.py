"""Assigns requests to servers, and queues requests for which no server has room.

Requests of the episode with the most turns come first. Among episodes with equally many turns, the
one that was announced first comes first. Therefore episodes finish while their keys and values are
still in a server's cache, and so do the groups and steps that wait for the episodes. No request
waits forever, because the episodes before it run out of turns and new episodes come after it. A
server's own queue would serve requests in the order of their arrival.
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
from agents.serving.sampling.server import SamplingServer

_CROWDED = 1.5
"""A request goes to the idlest server if its home server has more requests than this factor times
those of the idlest server."""
SPARE = 1.0
"""Number of extra requests at a server, as a fraction of those that it computes at the same time.
An extra request replaces a finished one immediately. Without extra requests, the server computes
fewer requests until this process reads the response and the next request arrives at the server."""
_CHECK_S = 1.0
"""A waiting request checks at this interval, in seconds, whether a server has recovered."""
_DRAIN_CHECK_S = 0.01


@dataclass(slots=True, eq=False)
class Request:
    """A request for one completion. If its server fails, the request is placed again."""

    session: str | None
    prompt: int
    """Hash of a first turn's prompt, which all members of a group share, or 0 if the request's
    server is already known."""
    rank: tuple[int, int, int]
    """Rank in the queue. The smallest rank is served first."""
    asked_at: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0
    """Seconds that the request waited for room, so far."""
    server: asyncio.Future[SamplingServer] | None = None

    @property
    def priority(self) -> int:
        """Priority in the server's own queue. The lowest value comes first."""
        return self.rank[0]


@dataclass(slots=True)
class _Session:
    """One episode."""

    order: int
    num_turns: int = 0
    """Number of turns that the episode has requested."""
    home: SamplingServer | None = None
    """The server whose prefix cache has the episode's tokens, or None."""
    num_waiting: int = 0
    waits_since: float = 0.0
    queued_s: float = 0.0
    """Seconds, until ``waits_since``, during which at least one of the episode's requests
    waited."""


class Dispatcher:
    """Places requests on servers.

    A server gets at most as many requests as it computes at the same time, plus some extra ones.

    An episode stays on the server that caches its earlier turns, and a group's members share a
    server, unless that server failed or is much busier than another.

    Args:
        servers: the servers.
        max_num_seqs: number of requests that a server computes at the same time, if the server does
            not report it.
        stuck_s: maximum seconds for which requests wait while none of them is placed.
        spare: number of extra requests at a server, as a fraction of those that it computes.
        share: the part of each server's room that these requests may fill. Other processes that
            send requests to the servers fill the rest.
    """

    def __init__(
        self,
        servers: Sequence[SamplingServer],
        *,
        max_num_seqs: int,
        stuck_s: float,
        spare: float = SPARE,
        share: float = 1.0,
    ) -> None:
        self._servers = servers
        self._max_num_seqs = max_num_seqs
        self._stuck_s = stuck_s
        self._filled = (1 + spare) * share
        self._running: Counter[SamplingServer] = Counter()
        self._waiting: list[Request] = []
        self._sessions: dict[str, _Session] = {}
        self._homes: dict[int, SamplingServer] = {}
        self._numbers = itertools.count()
        self._moved_at = 0.0
        self._held = False
        self._placed = 0
        self._queued_s = 0.0

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes, in the order of their priority."""
        for session in sessions:
            self._session(session)

    def end(self, session: str) -> None:
        """Forget an episode that is over."""
        self._sessions.pop(session, None)

    def forget(self) -> None:
        """Forget which server caches which episode, because all caches were cleared."""
        self._homes.clear()
        for session in self._sessions.values():
            session.home = None

    def queued_s(self, session: str) -> float:
        """Seconds during which at least one of an episode's requests has waited for room."""
        known = self._sessions.get(session)
        if known is None:
            return 0.0
        waits = time.monotonic() - known.waits_since if known.num_waiting else 0.0
        return known.queued_s + waits

    def take_queued(self) -> tuple[int, float]:
        """Number of requests placed since the last call, and all their seconds of waiting."""
        taken = self._placed, self._queued_s
        self._placed, self._queued_s = 0, 0.0
        return taken

    def request(self, prompt: list[int], session: str | None) -> Request:
        """A new request for :meth:`place`."""
        number = next(self._numbers)
        known = self._session(session) if session is not None else None
        at_home = len(self._servers) == 1 or (known is not None and known.home is not None)
        first = 0 if at_home else hash(tuple(prompt))
        if known is None:
            return Request(None, first, (0, number, number))
        request = Request(session, first, (-known.num_turns, known.order, number))
        known.num_turns += 1
        return request

    async def place(self, request: Request) -> SamplingServer:
        """Wait for a server with room for ``request``. The caller must later call :meth:`free`.

        Raises:
            PolicyFailure: every server was given up, or no waiting request was placed for
                ``stuck_s``.
        """
        request.server = asyncio.get_running_loop().create_future()
        request.asked_at = time.monotonic()
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.rank)
        self._dispatch()
        self._start_wait(request)
        try:
            while not request.server.done():
                await self._wait(request, request.server)
        except BaseException:
            if not request.server.done():
                self._waiting.remove(request)
            elif not request.server.cancelled():
                self.free(request.server.result())
            raise
        finally:
            self._end_wait(request)
        return request.server.result()

    def num_running(self, server: SamplingServer) -> int:
        """Number of requests that are at a server."""
        return self._running[server]

    def free(self, server: SamplingServer) -> None:
        """Release the place of a request that has ended."""
        self._running[server] -= 1
        self._dispatch()

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Ensure that no request runs while the context lasts. New requests wait until it ends.

        Raises:
            PolicyFailure: running requests did not end within ``stuck_s``.
        """
        self._held, end = True, time.monotonic() + self._stuck_s
        try:
            while any(self._running.values()):
                if time.monotonic() > end:
                    message = f"running requests did not end for {self._stuck_s:g} s"
                    raise PolicyFailure(message, retryable=True)
                await asyncio.sleep(_DRAIN_CHECK_S)
            yield
        finally:
            self._held, self._moved_at = False, time.monotonic()
            self._dispatch()

    def _session(self, name: str) -> _Session:
        if name not in self._sessions:
            self._sessions[name] = _Session(next(self._numbers))
        return self._sessions[name]

    def _start_wait(self, request: Request) -> None:
        known = self._sessions.get(request.session or "")
        if known is not None:
            if not known.num_waiting:
                known.waits_since = request.asked_at
            known.num_waiting += 1

    def _end_wait(self, request: Request) -> None:
        now = time.monotonic()
        request.queued_s += now - request.asked_at
        assert request.server is not None
        if request.server.done() and not request.server.cancelled():
            self._placed += 1
            self._queued_s += now - request.asked_at
        known = self._sessions.get(request.session or "")
        if known is not None and known.num_waiting:
            known.num_waiting -= 1
            if not known.num_waiting:
                known.queued_s += now - known.waits_since

    async def _wait(self, request: Request, placed: asyncio.Future[SamplingServer]) -> None:
        """Wait until the request is placed, a server recovers, or the next check is due.

        Raises:
            PolicyFailure: as :meth:`place`.
        """
        broken = [server.broken for server in self._servers]
        if all(broken):
            raise PolicyFailure(f"no server is left: {broken[0]}", retryable=False)
        left = max(request.asked_at, self._moved_at) + self._stuck_s - time.monotonic()
        if left <= 0:
            raise PolicyFailure(
                f"no server had room: no request ended for {self._stuck_s:g} s", retryable=True
            )
        ready = [server.is_ready for server in self._servers]
        lost = [s for s in self._servers if not s.is_ready and s.broken is None]
        changes = [asyncio.ensure_future(server.changed()) for server in lost]
        any_of: set[asyncio.Future[Any]] = {placed, *changes}
        try:
            await asyncio.wait(
                any_of, timeout=min(left, _CHECK_S), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for change in changes:
                change.cancel()
        # Every other event that makes room calls _dispatch itself.
        if ready != [server.is_ready for server in self._servers]:
            self._dispatch()

    def _dispatch(self) -> None:
        """Place waiting requests, in their order, while there is room."""
        number = 0 if not self._held else len(self._waiting)
        while number < len(self._waiting):
            free = [s for s in self._servers if s.is_ready and self._room(s) > 0]
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
            assert request.server is not None
            request.server.set_result(chosen)

    def _room(self, server: SamplingServer) -> int:
        computed = server.max_num_seqs or self._max_num_seqs
        return math.ceil(computed * self._filled) - self._running[server]

    def _choose(self, request: Request, free: Sequence[SamplingServer]) -> SamplingServer | None:
        """The request's home server, or the idlest of ``free``.

        None if the request should wait for its home server.
        """
        known = self._sessions.get(request.session or "")
        home = (known.home if known is not None else None) or self._homes.get(request.prompt)
        idle = min(free, key=lambda server: self._running[server])
        if home is None or not home.is_ready:
            return idle
        if self._running[home] > _CROWDED * (self._running[idle] + 1):
            return idle
        return home if home in free else None
