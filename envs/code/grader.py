"""A cache of verdicts that many episodes share: equal programs with equal tests run once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from envs.code.values import without_large_values
from tools.sandbox import Test, Verdict

if TYPE_CHECKING:
    from tools.sandbox import Health


class Grades(Protocol):
    """The part of a sandbox that an environment uses."""

    @property
    def backend(self) -> str:
        """Name of the backend that confines programs."""
        ...

    @property
    def isolation(self) -> str:
        """Strength of the confinement: "namespaces", "restricted" or "none"."""
        ...

    async def grade(
        self,
        source: str,
        tests: Sequence[Test],
        entry_point: str | None = None,
        *,
        fresh_process: bool = False,
    ) -> Verdict:
        """Test a submission; see ``tools.sandbox.Sandbox.grade``."""
        ...

    async def ready(self) -> None:
        """Wait while the sandbox's queue is full."""
        ...

    async def health(self) -> Health:
        """Counters and gauges of the sandbox."""
        ...


class CachedGrader:
    """A sandbox with a cache of verdicts.

    Members of a group write many equal programs. Concurrent requests for the same program share one
    run. Failed runs are not cached, so the next request tries again. To bound memory, a large
    output is cut to its beginning (``LargeValue``), also in the first request's verdict.

    Args:
        sandbox: grades programs that are not cached.
        size: number of cached verdicts; the least recently used is dropped first.
        fresh_process: whether each test runs in a new process.
    """

    def __init__(self, sandbox: Grades, size: int = 8192, *, fresh_process: bool = False) -> None:
        if size < 1:
            raise ValueError(f"size ({size}) must be >= 1")
        self._sandbox = sandbox
        self._size = size
        self._fresh_process = fresh_process
        self._verdicts: OrderedDict[bytes, asyncio.Task[Verdict]] = OrderedDict()
        self.num_asked = 0
        self.num_run = 0

    @property
    def backend(self) -> str:
        """The sandbox's backend."""
        return self._sandbox.backend

    @property
    def isolation(self) -> str:
        """The sandbox's isolation."""
        return self._sandbox.isolation

    async def grade(
        self, source: str, tests: Sequence[Test], entry_point: str | None = None
    ) -> Verdict:
        """Test a submission; see ``tools.sandbox.Sandbox.grade``.

        Raises:
            SandboxFailure: the sandbox failed.
        """
        self.num_asked += 1
        content = repr((source, tuple(tests), entry_point))
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
        run = self._verdicts.get(key)
        if run is None:
            self.num_run += 1
            run = asyncio.create_task(self._graded(source, tests, entry_point))
            self._verdicts[key] = run
            run.add_done_callback(lambda done: self._forget_failure(key, done))
        self._verdicts.move_to_end(key)
        self._shrink()
        # Shielded: a cancelled request must not cancel the run of others.
        return await asyncio.shield(run)

    async def _graded(self, source: str, tests: Sequence[Test], entry_point: str | None) -> Verdict:
        verdict = await self._sandbox.grade(
            source, tests, entry_point, fresh_process=self._fresh_process
        )
        return without_large_values(verdict)

    async def ready(self) -> None:
        """Wait while the sandbox's queue is full."""
        await self._sandbox.ready()

    async def health(self) -> Health:
        """The sandbox's counters; they do not count cached verdicts."""
        return await self._sandbox.health()

    async def close(self) -> None:
        """Cancel all runs and clear the cache."""
        running = [run for run in self._verdicts.values() if not run.done()]
        self._verdicts.clear()
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget_failure(self, key: bytes, run: asyncio.Task[Verdict]) -> None:
        # Reading the exception also keeps asyncio from logging it as never retrieved.
        if (run.cancelled() or run.exception() is not None) and self._verdicts.get(key) is run:
            del self._verdicts[key]

    def _shrink(self) -> None:
        """Drop the oldest verdicts, but keep unfinished runs."""
        for key in list(islice(self._verdicts, max(0, len(self._verdicts) - self._size))):
            if self._verdicts[key].done():
                del self._verdicts[key]
