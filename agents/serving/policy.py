"""The policy that samples from servers, and manages them; see :class:`agents.policy.Policy`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from agents.digests.comparison import SentDigests, digests_of
from agents.policy import Busy, PolicyFailure
from agents.serving.client import PublishedWeights, UnfitWeights, WeightPublisher
from agents.serving.errors import Unreachable
from agents.serving.probe import Prober
from agents.serving.sampling.guests import Guest, GuestReport, GuestSettings, lane_of
from agents.serving.sampling.sampler import Sampler, Timeouts
from agents.serving.sampling.server import GENERATE
from agents.serving.server import RESTART, SYNC, ManagedServer

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all, then raise the first exception."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for end in ended:
        if isinstance(end, BaseException):
            raise end
        results.append(end)
    return results


class ServerPolicy(Sampler):
    """Samples from servers that all run the same weights.

    Other processes can sample from the servers as well: its guests
    (:mod:`agents.serving.sampling.guests`).

    Call :meth:`open` and then :meth:`load_weights` before the first request.

    Args:
        servers: the servers.
        publisher: makes weights available to the servers.
        prober: verifies the servers' weights.
        context_window: maximum number of tokens in one sequence. Each server must support it.
        timeouts: deadlines.
        max_num_seqs: number of requests that a server computes at the same time, if the server does
            not report it. The other requests wait here
            (:class:`~agents.serving.sampling.dispatch.Dispatcher`).
        sleeps: whether the servers free their device's memory while the learner learns. Their
            clients must be :class:`~agents.serving.client.SleepingClient`.
    """

    engine: ClassVar[str] = "server"
    """Name of the engine in logs, in the run's status and in its metrics."""
    window_option: ClassVar[str] = ""
    """The server's command-line option for its context window, for an error message."""
    compares_digests: ClassVar[bool] = False
    """Whether servers report the digest of each parameter that they loaded."""
    shares_weights = False

    def __init__(
        self,
        servers: Sequence[ManagedServer],
        publisher: WeightPublisher,
        prober: Prober,
        *,
        context_window: int,
        timeouts: Timeouts | None = None,
        max_num_seqs: int = 64,
        sleeps: bool = False,
    ) -> None:
        self.sleeps = sleeps
        self._servers = list(servers)
        self._publisher = publisher
        self._prober = prober
        self._timeouts = timeouts or Timeouts()
        super().__init__(
            self._servers,
            context_window=context_window,
            request_s=self._timeouts.request_s,
            max_num_seqs=max_num_seqs,
        )
        self._max_num_seqs = max_num_seqs
        self._guests: dict[Guest, Sequence[int]] = {}
        """The guests, each with its number of running requests by server."""
        self._holding: list[asyncio.Future[None]] | None = None
        """The guests that end their requests, while no request may run; otherwise None."""
        self._waits = (0, 0.0)
        """The number of requests of guests that were placed, and the seconds that they waited."""
        self._sync: dict[str, float] = {}
        self._monitor: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the servers, or start them.

        Raises:
            PolicyFailure: a server cannot be reached or started, or its context window is smaller.
        """
        await all_of(server.open() for server in self._servers)
        for server in self._servers:
            window = server.client.context_window
            if window < self._context_window:
                option = self.window_option and f" ({self.window_option} {self._context_window})"
                raise PolicyFailure(
                    f"{server.client.url} takes {window} tokens, episodes may have "
                    f"{self._context_window}: set context_length={window}, or start the server "
                    f"with a larger window{option}",
                    retryable=False,
                )
        self._monitor = asyncio.create_task(self._monitor_servers())

    @property
    def endpoint(self) -> str:
        """Names of the APIs in use."""
        return ", ".join(sorted({server.client.endpoint for server in self._servers}))

    @property
    def description(self) -> str:
        """Servers and endpoint, in one line."""
        urls = ", ".join(server.client.url for server in self._servers)
        return f"{urls}, endpoint {self.endpoint}"

    async def sleep(self) -> None:
        """Give the device's memory to the learner, if configured."""
        if self.sleeps:
            await all_of(server.sleep() for server in self._servers)

    async def wake(self) -> None:
        """Take the memory for the weights again, if configured.

        The next :meth:`load_weights` takes the memory of the cache, and requests continue.
        """
        if self.sleeps:
            await all_of(server.wake() for server in self._servers)

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Load weights on every server, and verify each.

        Running requests continue with the new weights. If a server that this run started fails, it
        is restarted, and then loads the weights.

        Raises:
            ValueError: ``weights`` is None, but servers share no weights with the learner.
            PolicyFailure: the weights are not finite, a server cannot load them, or does not sample
                from them (:class:`WeightsDiffer`).
        """
        if weights is None:
            raise ValueError("weights is None: a server shares no weights with the learner")
        began = time.perf_counter()
        try:
            published, digests = await asyncio.to_thread(self._publish, weights, version)
        except (UnfitWeights, OSError) as error:
            raise PolicyFailure(str(error), retryable=False) from error
        written = time.perf_counter()
        await self._prober.expect(version, digests)
        self._dispatcher.forget()
        # Without reported versions, a completion must have one version: no request may run during
        # the update, nor wait in a server's queue, from where newer weights would sample it.
        reported = all(server.client.reports_versions for server in self._servers)
        async with contextlib.nullcontext() if reported else self._quiet():
            results = await all_of(server.load(published, version) for server in self._servers)
            self._version = version
            for guest in self._guests:
                guest.set_version(version)
        loaded = time.perf_counter()
        self._sync = {
            "sync/write_s": written - began,
            "sync/load_s": max(seconds for seconds, _ in results),
            "sync/max_difference": max(proof.difference for _, proof in results),
            "sync/tensors_compared": float(min(proof.num_compared for _, proof in results)),
            "sync/seconds": loaded - began,
        }

    def _publish(
        self, weights: Mapping[str, torch.Tensor], version: int
    ) -> tuple[PublishedWeights, SentDigests | None]:
        """The published weights, and the digests of their tensors."""
        published = self._publisher.write(weights, version)
        return published, digests_of(weights) if self.compares_digests else None

    @contextlib.asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """Ensure that no request runs, neither here nor of a guest, while the context lasts."""
        async with self._dispatcher.quiet():
            holding = self._holding = [
                asyncio.ensure_future(guest.hold()) for guest in self._guests
            ]
            try:
                await all_of(holding)
                yield
            finally:
                self._holding = None
                for hold in holding:
                    hold.cancel()
                for guest in self._guests:
                    guest.release()

    @property
    def guest_settings(self) -> GuestSettings:
        """What a guest must know of this policy."""
        request_s, most = self._timeouts.request_s, self._max_num_seqs
        count = len(self._servers)
        return GuestSettings(self.engine, count, self._context_window, request_s, most)

    def admit(self, guest: Guest) -> None:
        """Keep a guest informed from now on, until :meth:`dismiss`.

        Raises:
            ValueError: other processes cannot send requests to the servers.
        """
        for index, server in enumerate(self._servers):
            guest.set_server(index, server.shared_state)
            server.on_change = partial(self._inform_guests, index)
        if self._version >= 0:
            guest.set_version(self._version)
        if self._holding is not None:
            self._holding.append(asyncio.ensure_future(guest.hold()))
        self._guests[guest] = [0] * len(self._servers)

    def dismiss(self, guest: Guest) -> None:
        """Forget a guest, which has ended."""
        del self._guests[guest]
        self._count_running()

    def guest_reported(self, guest: Guest, report: GuestReport) -> None:
        """Take note of a guest's report."""
        if guest not in self._guests:
            return  # It is not admitted yet, or not any more.
        self._guests[guest] = report.running
        self._count_running()
        placed, queued_s = self._waits
        self._waits = placed + report.placed, queued_s + report.queued_s
        self._counts += report.counts

    def guest_complained(self, index: int, generation: int, error: Unreachable) -> None:
        """Check a server that failed a guest, unless it became ready again since."""
        server = self._servers[index]
        if server.generation == generation:
            server.mark_unhealthy(error)

    def _inform_guests(self, index: int) -> None:
        state = self._servers[index].shared_state
        for guest in self._guests:
            guest.set_server(index, state)

    def _count_running(self) -> None:
        for index, server in enumerate(self._servers):
            server.running_elsewhere = sum(running[index] for running in self._guests.values())

    def progress(self) -> float:
        """A number that changes with each token, loading of weights or recovery of a server."""
        return float(sum(server.progress for server in self._servers) + self._version)

    def component_status(self) -> dict[str, str]:
        """The state of each server."""
        return {f"{self.engine} {n}": server.state for n, server in enumerate(self._servers)}

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Count each server's seconds as restarting, syncing, generating or idle."""
        for n, server in enumerate(self._servers):
            server.busy = lane(lane_of(self.engine, n), (RESTART, SYNC, GENERATE))

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        urls = [server.client.url for server in self._servers]
        return {"policy": self.engine, "urls": urls, "endpoint": self.endpoint}

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the last update, and of failures since the last call."""
        counts = {f"policy/{name}": float(count) for name, count in self._counts.items()}
        restarts = sum(server.take_restarts() for server in self._servers)
        self._counts = Counter()
        placed, queued_s = map(sum, zip(self._dispatcher.take_queued(), self._waits, strict=True))
        self._waits = (0, 0.0)
        always = {
            "policy/restarts": float(restarts),
            "policy/queued_s": queued_s / placed if placed else 0.0,
        }
        return self._sync | {"policy/reissued": 0.0} | counts | always

    async def close(self) -> None:
        """End the servers that this run started, and delete the published weights."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.wait({self._monitor})
        try:
            await all_of(server.close() for server in self._servers)
        finally:
            await asyncio.to_thread(self._publisher.close)

    async def _monitor_servers(self) -> None:
        """Detect servers that hang. Their health page may still answer 200."""
        every_s = min(self._timeouts.stall_s / 4, 5.0)
        while True:
            await asyncio.sleep(every_s)
            for server in self._servers:
                if server.is_ready:
                    try:
                        await server.check_progress(self._timeouts.stall_s)
                    except Exception:
                        # The other servers must be checked, and this one again.
                        logger.exception("the check of a server's progress failed")
