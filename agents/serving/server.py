"""One server of a policy, which either serves requests or recovers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import aiohttp

from agents.policy import PolicyFailure
from agents.serving.client import (
    Connect,
    CopiedClient,
    EngineRunner,
    PublishedWeights,
    SleepingClient,
    wait_until_ready,
)
from agents.serving.errors import Broken, Refused, ServerGone, Unreachable
from agents.serving.probe import Prober, Proof, WeightsDiffer
from agents.serving.sampling.guests import ServerState
from agents.serving.sampling.server import SamplingServer, open_session

logger = logging.getLogger(__name__)
MAX_RESTARTS_IN_A_ROW = 3
RESTART, SYNC = "restart", "sync"
"""Names of the states whose seconds are counted for each server, besides generating."""


class ManagedServer(SamplingServer):
    """One server or engine, monitored and restarted.

    Args:
        prober: verifies the server's weights.
        connect: makes the client of a server that the user has started.
        runner: starts the server on this machine. Exactly one of ``connect`` and ``runner`` must be
            set.
        start_s: deadline of a start, in seconds.
        load_s: deadline of loading weights.
        short_s: deadline of calls that generate nothing.
    """

    def __init__(
        self,
        prober: Prober,
        *,
        connect: Connect | None = None,
        runner: EngineRunner | None = None,
        start_s: float = 600.0,
        load_s: float = 120.0,
        short_s: float = 20.0,
    ) -> None:
        if (connect is None) == (runner is None):
            raise ValueError("give either connect, for a running server, or runner, to start one")
        super().__init__()
        self.on_change: Callable[[], None] = lambda: None
        """Called after the server became ready or unready, was given up, or loaded weights."""
        self.running_elsewhere = 0
        """Number of requests without a response that other processes sent."""
        self._prober = prober
        self._connect = connect
        self._runner = runner
        self._start_s, self._load_s, self._short_s = start_s, load_s, short_s
        self._session: aiohttp.ClientSession | None = None
        self._weights: tuple[PublishedWeights, int] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._device_free = asyncio.Event()
        """Whether the server may use its device. Cleared while the server sleeps."""
        self._device_free.set()
        self._restarts = 0
        self.generation = 0
        """Number of times that the server became ready."""
        self._tokens: float | None = None
        self._progress_at = 0.0

    async def open(self) -> None:
        """Connect to the server, or start it and wait until it answers.

        Raises:
            PolicyFailure: the server does not answer within ``start_s``, or cannot be used.
        """
        self._session = open_session()
        try:
            await self._reach()
        except (Unreachable, Refused, ServerGone) as error:
            raise PolicyFailure(str(error), retryable=False) from error
        self._set_ready()

    @property
    def state(self) -> str:
        """The server's state, in words."""
        if self.broken is not None:
            return f"given up: {self.broken}"
        if not self.is_ready:
            return "starting" if self._recovery is None else "restarting"
        if not self._device_free.is_set():
            return "asleep"
        if self._loading.locked():
            return "loading weights"
        return f"ready, {self.num_running} requests"

    @property
    def progress(self) -> float:
        """A number that changes with each token, loading of weights or recovery of the server."""
        return (self._tokens or 0.0) + self._num_done

    @property
    def num_running(self) -> int:
        """Number of requests that have no response yet, including those of other processes."""
        return self.client.num_running + self.running_elsewhere

    @property
    def shared_state(self) -> ServerState:
        """What other processes that send requests to the server must know.

        Raises:
            ValueError: other processes cannot send requests to it.
        """
        if not isinstance(self.client, CopiedClient):
            raise ValueError(f"{self.client.url} takes requests of this process only")
        broken = "" if self.broken is None else str(self.broken)
        return ServerState(self.generation, self.is_ready, broken, self.client.copied())

    def take_restarts(self) -> int:
        """Number of restarts since the last call."""
        taken, self._restarts = self._restarts, 0
        return taken

    async def sleep(self) -> None:
        """Free the device's memory until :meth:`wake`.

        A server that cannot sleep is stopped. It starts again after :meth:`wake`, because until
        then a learner has the memory.
        """
        # A server that recovers uses the device now, and could not be asked to sleep.
        await self._changed.wait()
        self._device_free.clear()
        if self.broken is not None:
            return
        assert isinstance(self.client, SleepingClient)
        try:
            await self.client.sleep()
        except (Unreachable, Refused) as error:
            if self._runner is not None:
                await self._runner.stop()
            self.mark_unhealthy(Broken(f"it did not sleep: {error}"))

    async def wake(self) -> None:
        """Take the device's memory again. Requests wait until the next :meth:`load`."""
        self._device_free.set()
        if not self.is_ready:
            return
        assert isinstance(self.client, SleepingClient)
        try:
            await self.client.wake()
        except (Unreachable, Refused) as error:
            self.mark_unhealthy(Broken(f"it did not wake up: {error}"))

    async def load(self, weights: PublishedWeights, version: int) -> tuple[float, Proof]:
        """Load weights and verify them. Returns the seconds of loading, and the proof.

        Raises:
            PolicyFailure: the weights cannot be loaded, or the server samples from other weights.
        """
        async with self._loading:
            self._weights = (weights, version)
            for _ in range(MAX_RESTARTS_IN_A_ROW):
                # A recovered server has weights, but perhaps those of the version before.
                await self._changed.wait()
                if self.broken is not None:
                    raise self.broken
                try:
                    return await self._load_and_prove()
                except Refused as refusal:
                    raise PolicyFailure(str(refusal), retryable=False) from refusal
                except Unreachable as error:
                    self.mark_unhealthy(error)
                    last = error
        raise PolicyFailure(
            f"version {version} did not arrive in {MAX_RESTARTS_IN_A_ROW} attempts: {last}",
            retryable=False,
        )

    def mark_unhealthy(self, error: Unreachable) -> None:
        """Stop sending requests until the server is verified again. Running requests fail now."""
        if self._recovery is not None or self.broken is not None:
            return
        self._set_lost(error)
        self._recovery = asyncio.create_task(self._recover(error))
        self.on_change()

    async def check_progress(self, stall_s: float) -> None:
        """Mark the server unhealthy if it has requests but no token came for ``stall_s``."""
        now = time.monotonic()
        if self.num_running == 0 or self._loading.locked() or not self._device_free.is_set():
            self._progress_at = now
            return
        try:
            tokens = await self.client.num_tokens()
        except (Unreachable, Refused) as error:
            if self.is_ready:
                self.mark_unhealthy(Unreachable(f"it hangs: {error}"))
            return
        if tokens is None or tokens != self._tokens or self._loading.locked():
            self._tokens, self._progress_at = tokens, time.monotonic()
        elif now - self._progress_at > stall_s and self.is_ready:
            url = self.client.url
            self.mark_unhealthy(Unreachable(f"{url} hangs: no token for {stall_s:g} s"))

    async def close(self) -> None:
        """Close the connections, and end the server if this run started it. Requests fail."""
        closed = PolicyFailure("the policy is closed", retryable=False)
        self.broken = self.broken or closed
        self._changed.set()
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
        if self._ready.is_set():
            self._ready.clear()
            self._lost.set_result(Unreachable("the policy is closed"))
        if self._runner is not None:
            await self._runner.stop()
        if self._session is not None:
            await self._session.close()

    def _set_ready(self) -> None:
        super()._set_ready()
        self.generation += 1
        self._progress_at = time.monotonic()
        self.on_change()

    async def _reach(self) -> None:
        """Start the server if this run owns it, and wait until it answers."""
        assert self._session is not None
        if self._runner is None:
            assert self._connect is not None
            self.client = self._connect(self._session, short_s=self._short_s, load_s=self._load_s)
            return await wait_until_ready(self.client, self._short_s)
        await self._runner.start()
        self.client = self._runner.client(self._session, short_s=self._short_s, load_s=self._load_s)
        waiting = asyncio.ensure_future(wait_until_ready(self.client, self._start_s))
        ending = asyncio.ensure_future(self._runner.ended())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                runner = self._runner
                raise ServerGone(f"{runner.engine} ended during its start: {runner.last_words()}")
            waiting.result()
        finally:
            waiting.cancel()
            ending.cancel()

    async def _load_and_prove(self, *, sampled: bool = True) -> tuple[float, Proof]:
        assert self._weights is not None
        weights, version = self._weights
        began = time.perf_counter()
        with self.busy(SYNC):
            loaded = await self.client.load(weights, version)
            self._num_done += 1
            seconds = time.perf_counter() - began
            self.on_change()
            proof = await self._prober.prove(self.client, version, sampled=sampled, loaded=loaded)
            return seconds, proof

    async def _recover(self, error: Unreachable) -> None:
        """Verify the server, and restart it if the verification fails.

        A server whose response was invalid is restarted at once. A server that this run did not
        start is awaited instead of restarted.
        """
        logger.warning("%s failed and is checked: %s", self.client.url, error)
        try:
            last: Exception = error
            for _ in range(MAX_RESTARTS_IN_A_ROW):
                try:
                    with self.busy(RESTART):
                        if isinstance(error, Broken) or not await self._is_well():
                            await self._restart()
                    self._set_ready()
                    return
                # The server has started before: a start that fails may be worth another one.
                except (Unreachable, ServerGone) as failed:
                    logger.warning("%s did not recover yet: %s", self.client.url, failed)
                    last = failed
            raise PolicyFailure(
                f"{self.client.url} failed {MAX_RESTARTS_IN_A_ROW} times in a row: {last}",
                retryable=False,
            )
        except (Refused, PolicyFailure) as failure:
            self._give_up(failure)
        except Exception as failure:
            # Without this, requests would wait for the server forever.
            logger.exception("the recovery of %s failed", self.client.url)
            self._give_up(failure)
        finally:
            self._recovery = None

    def _give_up(self, failure: Exception) -> None:
        self._set_broken(PolicyFailure(str(failure), retryable=False))
        logger.error("%s is given up: %s", self.client.url, failure)
        self.on_change()

    async def _is_well(self) -> bool:
        """Whether the server samples a token, in time, from the right weights."""
        if self._runner is not None and not self._runner.running:
            return False
        try:
            if self._weights is None:
                await self.client.describe()
            else:
                await asyncio.wait_for(
                    self._prober.prove(self.client, self._weights[1], sampled=False),
                    self._short_s,
                )
        except (Unreachable, WeightsDiffer, TimeoutError):
            return False
        return True

    async def _restart(self) -> None:
        """Restart the server, or wait until its owner does so. Then load the newest weights."""
        if self._runner is not None:
            await self._runner.stop()
            self._restarts += 1
            await self._device_free.wait()
            await self._reach()
        else:
            await wait_until_ready(self.client, self._start_s, retry_refused=True)
        if self._weights is not None:
            await self._load_and_prove(sampled=False)
