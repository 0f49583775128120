"""The policy that samples from servers; see :class:`agents.policy.Policy`.

Every request is self-contained. If its server dies, hangs or loses the connection, the request is
retried with the same seed, on another server or on the recovered one. The episode does not notice
this, but a metric counts the retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agents.completion import Completion, FinishReason, SamplingParams
from agents.digests.comparison import SentDigests, digests_of
from agents.policy import Busy, PolicyFailure
from agents.serving.client import PublishedWeights, UnfitWeights, WeightPublisher
from agents.serving.dispatch import Dispatcher
from agents.serving.errors import Lost, Refused, Unreachable
from agents.serving.probe import Prober
from agents.serving.server import GENERATE, RESTART, SYNC, ManagedServer

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_REISSUES = 8
"""Maximum number of retries of one request, in case a request makes every server fail."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds."""

    request_s: float = 1800.0
    """Seconds that a completion may take with all its retries, not counting its time in the queue.
    The queue must move within the same time."""
    stall_s: float = 60.0
    """Seconds after which a server that has requests, but neither reads nor samples a token,
    counts as hanging."""


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all, then raise the first exception."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for end in ended:
        if isinstance(end, BaseException):
            raise end
        results.append(end)
    return results


class ServerPolicy:
    """Samples from servers that all run the same weights.

    Call :meth:`open` and then :meth:`load_weights` before the first request.

    Args:
        servers: the servers.
        publisher: makes weights available to the servers.
        prober: verifies the servers' weights.
        context_window: maximum number of tokens in one sequence. Each server must support it.
        timeouts: deadlines.
        max_num_seqs: number of requests that a server computes at the same time, if the server does
            not report it. The other requests wait here
            (:class:`~agents.serving.dispatch.Dispatcher`).
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
        self._context_window = context_window
        self._timeouts = timeouts or Timeouts()
        self._version = -1
        self._dispatcher = Dispatcher(
            self._servers, max_num_seqs=max_num_seqs, stuck_s=self._timeouts.request_s
        )
        self._names = itertools.count()
        self._counts: Counter[str] = Counter()
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
    def version(self) -> int:
        """The version of the weights from which the next token is sampled."""
        return self._version

    @property
    def endpoint(self) -> str:
        """Names of the APIs in use."""
        return ", ".join(sorted({server.client.endpoint for server in self._servers}))

    @property
    def description(self) -> str:
        """Servers and endpoint, in one line."""
        urls = ", ".join(server.client.url for server in self._servers)
        return f"{urls}, endpoint {self.endpoint}"

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes.

        Among episodes with equally many turns, the one announced first comes first.
        """
        self._dispatcher.begin(sessions)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``. Cancelling the call stops the generation.

        Raises:
            PolicyFailure: no server answered before the deadline, a server refused the request, or
                a server does not report the sampling support that the request needs.
            ValueError: the prompt is empty or longer than the context window.
        """
        prompt = list(prompt_ids)
        self._check(prompt)
        if len(prompt) == self._context_window:
            return Completion((), (), (), FinishReason.CONTEXT_FULL)
        left = self._timeouts.request_s
        name = f"{session or 'turn'}-{next(self._names)}"
        request, failed = self._dispatcher.request(prompt, session), 0
        for attempt in itertools.count():
            server = await self._dispatcher.place(request)
            began = time.monotonic()
            try:
                return await server.generate(
                    prompt,
                    sampling,
                    request_id=f"{name}-{attempt}",
                    version=self._version,
                    priority=request.priority,
                    deadline_s=left,
                )
            except Refused as refusal:
                raise PolicyFailure(str(refusal), retryable=False) from refusal
            except Unreachable as error:
                left -= time.monotonic() - began
                # A lost server fails all its requests, most of which did not cause the loss.
                failed += not isinstance(error, Lost)
                if left <= 0 or failed > MAX_REISSUES:
                    message = f"no completion after {attempt + 1} attempts: {error}"
                    raise PolicyFailure(message, retryable=True) from error
                self._counts["reissued"] += 1
                # Not a warning: the server itself warns once, and many requests fail with it.
                logger.info("a completion is retried: %s", error)
                server.mark_unhealthy(error)
            finally:
                self._dispatcher.free(server)
        raise AssertionError("the loop ends by returning or raising")

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for room on a server, so far."""
        return self._dispatcher.queued_s(session)

    def end(self, session: str) -> None:
        """Forget an episode that is over."""
        self._dispatcher.end(session)

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
        async with contextlib.nullcontext() if reported else self._dispatcher.quiet():
            results = await all_of(server.load(published, version) for server in self._servers)
            self._version = version
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

    def progress(self) -> float:
        """A number that changes with each token, loading of weights or recovery of a server."""
        return float(sum(server.progress for server in self._servers) + self._version)

    def component_status(self) -> dict[str, str]:
        """The state of each server."""
        return {f"{self.engine} {n}": server.state for n, server in enumerate(self._servers)}

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Count each server's seconds as restarting, syncing, generating or idle."""
        for n, server in enumerate(self._servers):
            server.busy = lane(f"{self.engine.lower()}-{n}", (RESTART, SYNC, GENERATE))

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        urls = [server.client.url for server in self._servers]
        return {"policy": self.engine, "urls": urls, "endpoint": self.endpoint}

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the last update, and of failures since the last call."""
        counts = {f"policy/{name}": float(count) for name, count in self._counts.items()}
        restarts = sum(server.take_restarts() for server in self._servers)
        self._counts = Counter()
        always = {
            "policy/restarts": float(restarts),
            "policy/queued_s": self._dispatcher.take_mean_queued_s(),
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

    def _check(self, prompt: list[int]) -> None:
        if self._version < 0:
            raise ValueError("no weights were loaded: call load_weights first")
        if not prompt:
            raise ValueError("prompt_ids is empty: at least one token must come before the first")
        if len(prompt) > self._context_window:
            raise ValueError(
                f"prompt_ids has {len(prompt)} tokens, the context window {self._context_window}: "
                "end the episode or shorten its context"
            )
