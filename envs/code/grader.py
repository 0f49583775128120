"""Verdicts for many episodes: equal programs for equal tests are run once."""

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
    """What an environment needs of a sandbox."""

    @property
    def backend(self) -> str:
        """What confines programs."""
        ...

    @property
    def isolation(self) -> str:
        """How strongly: "namespaces", "restricted" or "none"."""
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
        """Wait while too many wait for their turn."""
        ...

    async def health(self) -> Health:
        """Counters and gauges."""
        ...


class CachedGrader:
    """A sandbox that remembers its verdicts.

    Members of a group write many equal programs. Those in flight share one run; a run that the
    sandbox failed is forgotten, so the next asker tries again. Large answers are cut to how they
    begin (``LargeValue``), for the first asker as for the next: what programs return must not fill
    the memory.

    Args:
        sandbox: grades what is not remembered.
        size: verdicts kept, least recently asked for dropped first.
        fresh_process: have each test run in a process of its own.
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
        """As the sandbox's own.

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
        # Shielded: an asker that gives up must not take the answer from the others.
        return await asyncio.shield(run)

    async def _graded(self, source: str, tests: Sequence[Test], entry_point: str | None) -> Verdict:
        verdict = await self._sandbox.grade(
            source, tests, entry_point, fresh_process=self._fresh_process
        )
        return without_large_values(verdict)

    async def ready(self) -> None:
        """Wait while the sandbox has too many that wait for their turn."""
        await self._sandbox.ready()

    async def health(self) -> Health:
        """The sandbox's numbers; a remembered verdict is no part of them."""
        return await self._sandbox.health()

    async def close(self) -> None:
        """Cancel what is in flight and forget everything."""
        running = [run for run in self._verdicts.values() if not run.done()]
        self._verdicts.clear()
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget_failure(self, key: bytes, run: asyncio.Task[Verdict]) -> None:
        # Asking for the exception also marks it as seen, should every asker have given up.
        if (run.cancelled() or run.exception() is not None) and self._verdicts.get(key) is run:
            del self._verdicts[key]

    def _shrink(self) -> None:
        """Drop the oldest verdicts; a run in flight stays, it is bounded by its askers."""
        for key in list(islice(self._verdicts, max(0, len(self._verdicts) - self._size))):
            if self._verdicts[key].done():
                del self._verdicts[key]
