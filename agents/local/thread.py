"""The thread of a process that computes with torch on several cores."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class TorchThread:
    """Does one job after the other, with ``num_threads`` cores; all other threads keep theirs.

    A process should have one for everything that computes in parallel. OpenMP keeps a team of
    threads for each thread that computes on several cores. When all teams together have more
    threads than the machine has cores, their threads no longer wait busily, and each small
    operation pays a wake-up: everything takes two to three times as long, until the process ends.

    Args:
        num_threads: cores that a job may use.
        name: of the thread.
    """

    num_threads: int
    """Cores that a job may use, read before each one."""

    def __init__(self, num_threads: int = 1, name: str = "turnwise-torch") -> None:
        self.num_threads = num_threads
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], int | None] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.submit(int).result()

    def post(self, job: Callable[[], object], at_most: int | None = None) -> None:
        """Queue a job that raises nothing, and return at once.

        Args:
            job: what to do.
            at_most: cores that this job may use, where they are fewer than the thread's.

        Raises:
            RuntimeError: the thread is closed.
        """
        if self._closed:
            raise RuntimeError("the torch thread is closed")
        self._jobs.put((job, at_most))

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Queue a job; the future has what it returns or raises."""
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(work(*args))
            # Whatever it raises belongs to the caller.
            except BaseException as error:
                done.set_exception(error)

        self.post(job)
        return done

    async def do(self, work: Callable[..., T], *args: object) -> T:
        """What ``work`` returns; a call that is cancelled leaves it to be done to its end."""
        # Shielded: a job that was cancelled before its turn would be left out.
        return await asyncio.shield(asyncio.wrap_future(self.submit(work, *args)))

    async def settle(self) -> None:
        """Wait until every job that was queued before is done."""
        await self.do(int)

    async def close(self) -> None:
        """End the thread when its jobs are done; cancelled, the call does not wait."""
        if not self._closed:
            await self.settle()
            self._closed = True
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        now = 0
        while (queued := self._jobs.get()) is not None:
            job, at_most = queued
            wanted = min(self.num_threads, at_most or self.num_threads)
            if wanted != now:
                _set_own_num_threads(wanted)
                now = wanted
            job()
            # An idle thread would keep what the last job refers to.
            del job, queued


def _set_own_num_threads(count: int) -> None:
    """Set this thread's number; the one that later threads inherit stays."""
    # Asked first: else a thread's first use of torch takes the process's number afterwards.
    torch.get_num_threads()
    with ThreadPoolExecutor(1) as later:
        inherited = later.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        later.submit(torch.set_num_threads, inherited).result()
