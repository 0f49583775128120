"""Sampling from servers that a policy in another process manages.

The policy's own process starts the servers, loads weights on them, and recovers them. A guest is
another process that sends requests to the same servers. A guest gets from the policy which servers
are ready and which weights they have; it reports a server that failed, its running requests, and
their waits.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import aiohttp

from agents.policy import Busy, PolicyFailure
from agents.serving.client import MakeClient
from agents.serving.errors import Unreachable
from agents.serving.sampling.sampler import Sampler
from agents.serving.sampling.server import GENERATE, SamplingServer, open_session

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a guest must know of one server."""

    generation: int
    """Number of times that the server became ready."""
    ready: bool
    """Whether it takes requests."""
    broken: str = ""
    """Why the server will not recover, or empty."""
    client: MakeClient | None = None
    """Makes its client; None before the first start."""


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """What a guest must know of a policy."""

    engine: str
    """Name of the engine."""
    num_servers: int
    context_window: int
    """Maximum number of tokens in one sequence."""
    request_s: float
    """See :class:`~agents.serving.sampling.sampler.Timeouts`."""
    max_num_seqs: int
    """Number of requests that a server computes at the same time, if it does not report it."""


@dataclass(slots=True)
class GuestReport:
    """What a guest reports regularly."""

    running: Sequence[int]
    """Number of requests without a response, by server."""
    placed: int = 0
    """Number of requests placed on a server since the last report."""
    queued_s: float = 0.0
    """Seconds that they waited, in all."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events since the last report, such as retried requests."""


class Guest(Protocol):
    """A guest, as the policy's own process sees it. No method blocks."""

    def set_server(self, index: int, state: ServerState) -> None:
        """Give the guest the state of a server."""
        ...

    def set_version(self, version: int) -> None:
        """Give the guest the version of the weights that all servers have."""
        ...

    async def hold(self) -> None:
        """Wait until none of the guest's requests runs. New ones wait until :meth:`release`.

        Returns at once if the guest has ended.

        Raises:
            PolicyFailure: its requests did not end in time.
        """
        ...

    def release(self) -> None:
        """Let new requests run again."""
        ...


class GuestServer(SamplingServer):
    """A server that another process manages.

    Args:
        session: HTTP connections to use.
        complain: called if the server fails, with its generation and the error.
    """

    def __init__(
        self, session: aiohttp.ClientSession, complain: Callable[[int, Unreachable], None]
    ) -> None:
        super().__init__()
        self._session = session
        self._complain = complain
        self._generation = 0

    def update(self, state: ServerState) -> None:
        """Continue with a new state."""
        if state.client is not None:
            self.client = state.client(self._session)
        if self.is_ready and (not state.ready or state.generation != self._generation):
            self._set_lost(Unreachable(f"{self.client.url} is checked or was restarted"))
        # A state that was sent before this process complained says nothing new.
        if state.ready and state.generation > self._generation:
            self._generation = state.generation
            self._set_ready()
        if state.broken:
            self._set_broken(PolicyFailure(state.broken, retryable=False))

    def mark_unhealthy(self, error: Unreachable) -> None:
        """Send no requests until the server's process says that it is ready again."""
        if self.is_ready:
            self._set_lost(error)
            self._complain(self._generation, error)


class GuestPolicy(Sampler):
    """A guest, as its own process sees it; see :class:`agents.policy.Policy`.

    Args:
        settings: what the policy says of itself.
        number: the guest's number, from 0.
        num_guests: number of guests, which divide the servers' room among them.
        complain: called with the index of a server that failed, its generation, and the error.
    """

    shares_weights = False

    def __init__(
        self,
        settings: GuestSettings,
        number: int,
        num_guests: int,
        complain: Callable[[int, int, Unreachable], None],
    ) -> None:
        self._engine = settings.engine
        self._session = open_session()

        def server(index: int) -> GuestServer:
            return GuestServer(self._session, lambda *what: complain(index, *what))

        self._servers = [server(index) for index in range(settings.num_servers)]
        # Each guest prefers another server among equally idle ones.
        first = number % len(self._servers)
        super().__init__(
            [*self._servers[first:], *self._servers[:first]],
            context_window=settings.context_window,
            request_s=settings.request_s,
            max_num_seqs=settings.max_num_seqs,
            share=1 / num_guests,
        )
        self._held = contextlib.AsyncExitStack()

    def update_server(self, index: int, state: ServerState) -> None:
        """Continue with a new state of a server."""
        self._servers[index].update(state)

    def update_version(self, version: int) -> None:
        """Continue with the version that all servers have; their caches were cleared."""
        self._version = version
        self._dispatcher.forget()

    async def hold(self) -> None:
        """Wait until no request runs. New ones wait until :meth:`release`.

        Raises:
            PolicyFailure: running requests did not end in time.
        """
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._dispatcher.quiet())
            self._held = stack.pop_all()

    async def release(self) -> None:
        """Let new requests run again."""
        await self._held.aclose()

    def report(self) -> GuestReport:
        """What the policy must know, since the last report."""
        placed, queued_s = self._dispatcher.take_queued()
        counts, self._counts = self._counts, Counter()
        running = [self._dispatcher.num_running(server) for server in self._servers]
        return GuestReport(running, placed, queued_s, counts)

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Count the seconds in which each server has requests of this guest."""
        for n, server in enumerate(self._servers):
            server.busy = lane(lane_of(self._engine, n), (GENERATE,))

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Refuse: the policy's own process loads weights.

        Raises:
            PolicyFailure: always.
        """
        raise PolicyFailure("the servers' own process loads weights on them", retryable=False)

    def facts(self) -> dict[str, object]:
        """Nothing that a run records: the policy's own process does so."""
        return {}

    def take_metrics(self) -> dict[str, float]:
        """Nothing: :meth:`report` is for the policy's own process."""
        return {}

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def lane_of(engine: str, index: int) -> str:
    """Name of the lane in which a server's seconds are counted."""
    return f"{engine.lower()}-{index}"
