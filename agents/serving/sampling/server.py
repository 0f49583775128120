"""A server that samples completions while it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import aiohttp

from agents.completion import Completion, SamplingParams
from agents.policy import Busy, PolicyFailure
from agents.serving.client import EngineClient
from agents.serving.errors import Lost, Unreachable

GENERATE = "generate"
"""Name of the state whose seconds are counted while a server has requests."""
_REUSED_S = 2.0
"""Seconds of idleness after which a connection is not reused. Servers close idle connections after
5 s, and a request sent at that moment is lost."""


def open_session() -> aiohttp.ClientSession:
    """Open HTTP connections to servers. The caller closes them."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_REUSED_S)
    return aiohttp.ClientSession(connector=connector, trust_env=False)


class SamplingServer:
    """One server or engine, which either takes requests or recovers.

    A subclass says how it recovers (:meth:`mark_unhealthy`).
    """

    def __init__(self) -> None:
        self.busy: Busy = lambda state: contextlib.nullcontext()
        """Counts the server's seconds."""
        self.client: EngineClient
        self.broken: PolicyFailure | None = None
        """The reason why the server will not recover, or None while it serves requests or
        recovers."""
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._lost: asyncio.Future[Unreachable]
        self._num_done = 0
        """Number of completed loads, starts and requests."""

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts requests."""
        return self._ready.is_set()

    @property
    def num_running(self) -> int:
        """Number of requests that have no response yet."""
        return self.client.num_running

    @property
    def max_num_seqs(self) -> int | None:
        """Number of requests that the server computes at the same time, or None if unknown."""
        return self.client.max_num_seqs

    async def changed(self) -> None:
        """Wait until the server is ready, or is given up."""
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
        """Sample one completion; end early if the server dies or stalls.

        Raises:
            Lost: the server failed while the request ran. The request is not necessarily the cause.
            Unreachable, Refused: as :meth:`EngineClient.generate`.
        """
        lost = self._lost
        asking = asyncio.ensure_future(
            self.client.generate(
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

    def mark_unhealthy(self, error: Unreachable) -> None:
        """Stop sending requests until the server is verified again. Running requests fail now."""
        raise NotImplementedError

    def _set_ready(self) -> None:
        """Take requests from now on."""
        self._lost = asyncio.get_running_loop().create_future()
        self._num_done += 1
        self._ready.set()
        self._changed.set()

    def _set_lost(self, error: Unreachable) -> None:
        """Take no requests until the server is ready again. Running requests fail now."""
        self._ready.clear()
        self._changed.clear()
        self._lost.set_result(error)

    def _set_broken(self, failure: PolicyFailure) -> None:
        """Give the server up."""
        self.broken = failure
        self._changed.set()
