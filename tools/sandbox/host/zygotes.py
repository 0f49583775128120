"""Keeps a zygote ready for jobs, and replaces it after a number of runs and when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from tools.sandbox.backends.launcher import Launcher
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.host.job import Reply, Request
from tools.sandbox.host.reading import Clock
from tools.sandbox.host.zygote import LostError, RefusedError, Zygote
from tools.sandbox.limits import Limits

_PAUSES_S = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Seconds to wait before each start, by the number of earlier failures. Then starting fails."""
_MAX_REFUSALS = 3
"""Number of zygotes that can refuse a job before the job fails."""
_MAX_RETIRED = 2
"""Number of replaced zygotes with open sessions at which no further zygote is replaced."""


class Zygotes:
    """The current zygote, which is replaced after ``recycle_after`` runs and when it dies."""

    def __init__(
        self, launcher: Launcher, limits: Limits, *, idle: int, recycle_after: int
    ) -> None:
        self._launcher = launcher
        self._limits = limits
        self._idle = idle
        self._recycle_after = recycle_after
        self._current: Zygote | None = None
        self._retired: list[Zygote] = []  # replaced, with runs still in flight
        self._closing: set[asyncio.Future[None]] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._ending = asyncio.Event()
        self._bad_starts = 0
        self.started = self.recycled = self.died = self.refused = 0
        """Numbers of zygotes that were started, recycled and lost, and number of refused jobs."""

    async def start(self) -> None:
        """Start the first zygote.

        Raises:
            SandboxFailure: the sandbox was closed meanwhile.
            SandboxUnavailable: the zygote does not start; the message quotes its standard error.
        """
        try:
            async with self._lock:
                self._check_open()
                self._current = await self._spawn()
        except (LostError, OSError) as error:
            raise SandboxUnavailable(f"{self._launcher.backend} does not start: {error}") from None

    async def _spawn(self) -> Zygote:
        zygote = Zygote(self._launcher, self._limits, self._idle)
        try:
            await zygote.start()
        except BaseException:
            await zygote.close()
            raise
        self.started += 1
        return zygote

    async def run(
        self, request: Request, channel: socket.socket | None, clock: Clock | None = None
    ) -> Reply:
        """Run one job on the current zygote.

        Raises:
            LostError: there was no reply.
            SandboxFailure: no zygote starts any more.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                zygote = await self._usable()
                return await zygote.run(request, channel, clock)
            except RefusedError as error:
                refusal = error
            finally:
                self._tidy()
        raise refusal

    async def connect(self) -> tuple[socket.socket, Callable[[], None]]:
        """Open a stream to a supervisor. Return the stream and a function that closes it.

        Raises:
            LostError: no supervisor can be reached.
            SandboxFailure: no zygote starts any more.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                zygote = await self._usable()
                stream = zygote.connect()
                break
            except RefusedError as error:
                refusal = error
        else:
            raise refusal

        def close() -> None:
            zygote.disconnect(stream)
            self._tidy()

        return stream, close

    async def _usable(self) -> Zygote:
        async with self._lock:
            self._check_open()
            zygote = self._current
            if zygote is None or zygote.dead or zygote.spent:
                self.died += zygote is not None
                self._retire()
                zygote = await self._respawn()
            elif (
                zygote.served >= self._recycle_after
                and self._replacing is None
                and len(self._retired) < _MAX_RETIRED
            ):
                self._replacing = asyncio.create_task(self._replace())
            return zygote

    async def _respawn(self) -> Zygote:
        if self._bad_starts >= len(_PAUSES_S):
            self.refused += 1
            raise SandboxFailure(
                f"{self._launcher.backend} did not start {self._bad_starts} times in a row: "
                "make a new sandbox",
                retryable=False,
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSES_S[self._bad_starts]):
                await self._ending.wait()
        self._check_open()
        try:
            self._current = await self._spawn()
        except (LostError, OSError, SandboxUnavailable) as error:
            self._bad_starts += 1
            raise RefusedError(f"the sandbox does not start again: {error}") from None
        self._bad_starts = 0
        return self._current

    def _check_open(self) -> None:
        if self._ending.is_set():
            raise SandboxFailure(
                f"{self._launcher.backend}: the sandbox was closed meanwhile",
                retryable=False,
            )

    async def _replace(self) -> None:
        try:
            fresh = await self._spawn()
        except (LostError, OSError, SandboxUnavailable):
            return  # the old zygote continues; the next run tries again
        finally:
            self._replacing = None
        self.recycled += 1
        self._retire()
        self._current = fresh

    def _retire(self) -> None:
        if self._current is not None:
            self._retired.append(self._current)
            self._current = None
        self._tidy()

    def _tidy(self) -> None:
        """Close the replaced zygotes that have no runs, in the background."""
        for zygote in [z for z in self._retired if z.running == 0]:
            self._retired.remove(zygote)
            task = zygote.close()
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all zygotes and their processes. Jobs in flight are lost."""
        self._ending.set()
        if self._replacing is not None:
            self._replacing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replacing
        async with self._lock:  # so that a zygote which is starting ends as well
            remaining = [*self._retired, *([self._current] if self._current else [])]
            self._retired, self._current = [], None
        await asyncio.gather(*(zygote.close() for zygote in remaining), *self._closing)
