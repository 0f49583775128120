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
    """Runs jobs one after the other on ``num_threads`` cores. Other threads are not affected.

    A process should have one TorchThread for all parallel computation. OpenMP keeps a team of
    threads for each thread that computes on several cores. If all teams together have more threads
    than the machine has cores, their threads stop busy-waiting. Every small operation then pays for
    a wake-up, so everything takes two to three times as long until the process ends.

    Args:
        num_threads: number of cores of a job.
        name: name of the thread.
    """

    num_threads: int
    """Number of cores of a job. It is read before each job."""

    def __init__(self, num_threads: int = 1, name: str = "turnwise-torch") -> None:
        self.num_threads = num_threads
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], int | None] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.submit(int).result()

    def post(self, job: Callable[[], object], at_most: int | None = None) -> None:
        """Queue a job, and return at once.

        Args:
            job: a function that raises nothing.
            at_most: maximum number of cores of this job, or None for ``num_threads``.

        Raises:
            RuntimeError: the thread is closed.
        """
        if self._closed:
            raise RuntimeError("the torch thread is closed")
        self._jobs.put((job, at_most))

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Queue a job, and return a future of its result."""
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(work(*args))
            # Every exception belongs to the caller.
            except BaseException as error:
                done.set_exception(error)

        self.post(job)
        return done

    async def do(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work`` in the thread and return its result.

        If the call is cancelled, the job still runs to its end.
        """
        # Shielded: a job that is cancelled while it is queued would not run.
        return await asyncio.shield(asyncio.wrap_future(self.submit(work, *args)))

    async def settle(self) -> None:
        """Wait until all queued jobs are done."""
        await self.do(int)

    async def close(self) -> None:
        """End the thread after its jobs. A cancelled call stops waiting."""
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
            # An idle thread would keep the last job's objects alive.
            del job, queued


def _set_own_num_threads(count: int) -> None:
    """Set this thread's number of cores, without changing the default of later threads."""
    # Query first: a thread's first use of torch resets its number to the process's default.
    torch.get_num_threads()
    with ThreadPoolExecutor(1) as later:
        inherited = later.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        later.submit(torch.set_num_threads, inherited).result()
