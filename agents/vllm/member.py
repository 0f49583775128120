"""A server as a member of a policy: ready, or on its way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from agents.completion import Completion, SamplingParams
from agents.policy import Busy, PolicyFailure
from agents.vllm.errors import Broken, Lost, Refused, Unreachable
from agents.vllm.instance import Handover, Instance, Startable
from agents.vllm.process import ServerConfig, ServerGone, ServerProcess
from agents.vllm.proof import Prober, Proof, WeightsDiffer
from agents.vllm.replica import Replica, open_session, ready

logger = logging.getLogger(__name__)
MAX_RESTARTS_IN_A_ROW = 3
RESTART, SYNC, GENERATE = "restart", "sync", "generate"
"""What its seconds are counted as."""


class Member:
    """One server: asked while it is ready; looked after, and started again, while it is not.

    Args:
        prober: proves which weights it runs.
        url: where a server of somebody else listens; None: one is started here.
        config: how one is started here.
        engine: what is started in its place.
        start_s: deadline of its being there, in seconds.
        load_s: deadline of loading weights.
        short_s: deadline of what generates nothing.
    """

    def __init__(
        self,
        prober: Prober,
        *,
        url: str | None = None,
        config: ServerConfig | None = None,
        engine: Startable | None = None,
        start_s: float = 600.0,
        load_s: float = 120.0,
        short_s: float = 20.0,
    ) -> None:
        if [url, config, engine].count(None) != 2:
            raise ValueError("give either the url of a server, or how to start one")
        self.busy: Busy = lambda state: contextlib.nullcontext()
        """Counts its seconds."""
        self._prober = prober
        self._process: Startable | None = ServerProcess(config) if config is not None else engine
        self._url = url
        self._start_s, self._load_s, self._short_s = start_s, load_s, short_s
        self._session: aiohttp.ClientSession | None = None
        self.replica: Instance
        self.broken: PolicyFailure | None = None
        """Why it will not come back."""
        self._weights: tuple[Handover, int] | None = None
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._lost: asyncio.Future[Unreachable]
        self._recovery: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._restarts = 0
        self._tokens: float | None = None
        self._num_done = 0
        """Loads and starts that succeeded, answers as well."""
        self._moved_at = 0.0

    async def open(self) -> None:
        """Connect, or start the server and wait until it is there.

        Raises:
            PolicyFailure: it is not there within ``start_s``, or is no server to be used.
        """
        self._session = open_session()
        try:
            await self._reach()
        except (Unreachable, Refused, ServerGone) as error:
            raise PolicyFailure(str(error), retryable=False) from error
        self._set_ready()

    @property
    def is_ready(self) -> bool:
        """Whether it may be asked."""
        return self._ready.is_set()

    @property
    def state(self) -> str:
        """What it does, in words."""
        if self.broken is not None:
            return f"given up: {self.broken}"
        if not self.is_ready:
            return "starting" if self._recovery is None else "restarting"
        if self._loading.locked():
            return "loading weights"
        return f"ready, {self.num_running} requests"

    @property
    def progress(self) -> float:
        """A number that changes when it reads, samples, loads weights or comes back."""
        return (self._tokens or 0.0) + self._num_done

    @property
    def num_running(self) -> int:
        """Requests that it has not answered."""
        return self.replica.num_running

    @property
    def max_num_seqs(self) -> int | None:
        """Requests that it computes at once; None where it does not tell."""
        return self.replica.max_num_seqs

    def take_restarts(self) -> int:
        """How often it was started again since the last call."""
        taken, self._restarts = self._restarts, 0
        return taken

    async def changed(self) -> None:
        """Return when it is ready, or will not be any more."""
        await self._changed.wait()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        version: int,
        priority: int,
        deadline_s: float,
    ) -> Completion:
        """As :meth:`Replica.generate`; ends early when the server is found to be gone or to hang.

        Raises:
            Lost: the server was lost meanwhile, by no fault of this request that is known.
            Unreachable, Refused: as there.
        """
        lost = self._lost
        asking = asyncio.ensure_future(
            self.replica.generate(
                prompt_ids,
                sampling,
                request_id=request_id,
                version=version,
                priority=priority,
                deadline_s=deadline_s,
            )
        )
        try:
            either: set[asyncio.Future[Any]] = {asking, lost}
            with self.busy(GENERATE):
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._num_done += 1
                return asking.result()
            raise Lost(str(lost.result()))
        finally:
            asking.cancel()

    async def load(self, given: Handover, version: int) -> tuple[float, Proof]:
        """Bring it to what is given, and prove it; the seconds of the first, and the proof.

        Raises:
            PolicyFailure: it cannot be brought there, or samples from others.
        """
        async with self._loading:
            self._weights = (given, version)
            for _ in range(MAX_RESTARTS_IN_A_ROW):
                # It comes back with weights, though maybe with those before these.
                await self._changed.wait()
                if self.broken is not None:
                    raise self.broken
                try:
                    return await self._load_and_prove()
                except Refused as refusal:
                    raise PolicyFailure(str(refusal), retryable=False) from refusal
                except Unreachable as error:
                    self.suspect(error)
                    last = error
        raise PolicyFailure(
            f"version {version} did not arrive in {MAX_RESTARTS_IN_A_ROW} attempts: {last}",
            retryable=False,
        )

    def suspect(self, error: Unreachable) -> None:
        """Take it out until it is known to work, or works again; running requests end now."""
        if self._recovery is not None or self.broken is not None:
            return
        self._ready.clear()
        self._changed.clear()
        self._lost.set_result(error)
        self._recovery = asyncio.create_task(self._recover(error))

    async def look(self, stall_s: float) -> None:
        """Suspect it when it is asked and did not read or sample a token for ``stall_s``."""
        now = time.monotonic()
        if self.num_running == 0 or self._loading.locked():
            self._moved_at = now
            return
        try:
            tokens = await self.replica.num_tokens()
        except (Unreachable, Refused) as error:
            if self.is_ready:
                self.suspect(Unreachable(f"it hangs: {error}"))
            return
        if tokens is None or tokens != self._tokens or self._loading.locked():
            self._tokens, self._moved_at = tokens, time.monotonic()
        elif now - self._moved_at > stall_s and self.is_ready:
            self.suspect(Unreachable(f"{self.replica.url} hangs: no token for {stall_s:g} s"))

    async def close(self) -> None:
        """End the connections, and the server where it was started here; what runs fails."""
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
        if self._process is not None:
            await self._process.stop()
        if self._session is not None:
            await self._session.close()

    def _set_ready(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._moved_at = time.monotonic()
        self._num_done += 1
        self._ready.set()
        self._changed.set()

    async def _reach(self) -> None:
        """Start it if it is ours, and wait for it."""
        assert self._session is not None
        if self._process is not None:
            await self._process.start()
            self.replica = self._process.instance(
                self._session, short_s=self._short_s, load_s=self._load_s
            )
        else:
            assert self._url is not None
            self.replica = Replica(
                self._url, self._session, short_s=self._short_s, load_s=self._load_s
            )
            return await ready(self.replica, self._short_s)
        waiting = asyncio.ensure_future(ready(self.replica, self._start_s))
        ending = asyncio.ensure_future(self._process.ended())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ServerGone(f"vLLM ended as it started: {self._process.last_words()}")
            waiting.result()
        finally:
            waiting.cancel()
            ending.cancel()

    async def _load_and_prove(self, *, sampled: bool = True) -> tuple[float, Proof]:
        assert self._weights is not None
        given, version = self._weights
        began = time.perf_counter()
        with self.busy(SYNC):
            await self.replica.load(given, version)
            self._num_done += 1
            seconds = time.perf_counter() - began
            return seconds, await self._prober.prove(self.replica, version, sampled=sampled)

    async def _recover(self, error: Unreachable) -> None:
        """Back to work: at once where it only lost a connection, else started or waited for."""
        logger.warning("a vLLM server is looked after: %s", error)
        try:
            last: Exception = error
            for _ in range(MAX_RESTARTS_IN_A_ROW):
                try:
                    with self.busy(RESTART):
                        if isinstance(error, Broken) or not await self._is_well():
                            await self._again()
                    self._set_ready()
                    return
                # It has worked before: one that ends as it starts may have been killed, too.
                except (Unreachable, ServerGone) as failed:
                    logger.warning("a vLLM server is not back yet: %s", failed)
                    last = failed
            raise PolicyFailure(
                f"a vLLM server failed {MAX_RESTARTS_IN_A_ROW} times in a row: {last}",
                retryable=False,
            )
        except (Refused, PolicyFailure) as failure:
            self._give_up(failure)
        except Exception as failure:
            # Whoever waits for the server must not wait for ever.
            logger.exception("looking after a vLLM server failed")
            self._give_up(failure)
        finally:
            self._recovery = None

    def _give_up(self, failure: Exception) -> None:
        self.broken = PolicyFailure(str(failure), retryable=False)
        logger.error("a vLLM server is given up: %s", failure)
        self._changed.set()

    async def _is_well(self) -> bool:
        """Whether it samples a token, in time, from the weights that it should."""
        if self._process is not None and not self._process.running:
            return False
        try:
            if self._weights is None:
                await self.replica.describe()
            else:
                await asyncio.wait_for(
                    self._prober.prove(self.replica, self._weights[1], sampled=False),
                    self._short_s,
                )
        except (Unreachable, WeightsDiffer, TimeoutError):
            return False
        return True

    async def _again(self) -> None:
        """Start it again, or wait for its owner to; then give it the newest weights."""
        if self._process is not None:
            await self._process.stop()
            self._restarts += 1
            await self._reach()
        else:
            await ready(self.replica, self._start_s, refusing=True)
        if self._weights is not None:
            await self._load_and_prove(sampled=False)
