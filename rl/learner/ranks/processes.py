"""Calls to the processes of all ranks, and their end."""

from __future__ import annotations

import asyncio
import pickle
import threading
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rl.learner.seam import LearnerLost

if TYPE_CHECKING:
    from rl.cluster.child import ChildProcess
    from rl.learner.ranks.messages import Answer
    from rl.learner.ranks.process import RankGroup

CLOSE_S = 15.0
"""Seconds within which the connections close after the ranks have ended."""


class RankProcesses:
    """Started ranks, each with a connection to this process.

    Args:
        group: the ranks.
        on_progress: called for each micro-batch of rank 0, in a thread.
        timeout_s: seconds without progress or an answer after which the ranks are lost.
    """

    def __init__(self, group: RankGroup, on_progress: Callable[[], None], timeout_s: float) -> None:
        self.version = 0
        """The version of the ranks' weights."""
        self.group = group
        self._on_progress = on_progress
        self.timeout_s = timeout_s
        self._lost: LearnerLost | None = None
        self._closed = False
        self._order = asyncio.Lock()
        self._ranks = group.ranks
        self._answers: list[Future[Answer]] = []
        self._progressed = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(rank,), daemon=True) for rank in self._ranks
        ]
        self._loop: AbstractEventLoop | None = None
        self._tasks: set[Task[Any]] = set()

    @property
    def pids(self) -> list[int]:
        """The processes' ids, by rank."""
        return [rank.pid for rank in self._ranks]

    async def call(self, name: str, args: tuple[Any, ...] | Sequence[tuple[Any, ...]]) -> Any:
        """Let every rank do ``name``, and return the result of rank 0.

        Args:
            name: a method of the rank.
            args: its arguments; in a list, one tuple for each rank.

        Raises:
            LearnerLost: a rank ended, or there was no progress in time. All ranks have ended.
        """
        each = args if isinstance(args, list) else [tuple(args)] * len(self._ranks)
        # A caller that is cancelled leaves the ranks in the middle of the call, and they finish it:
        # the next call waits for its end.
        task = asyncio.create_task(self._call(name, each))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _call(self, name: str, each: Sequence[tuple[Any, ...]]) -> Any:
        async with self._order:
            if self._lost is not None:
                raise self._lost
            self._start_reading()
            loop = asyncio.get_running_loop()
            self._answers = [loop.create_future() for _ in self._ranks]
            waiting = asyncio.gather(*self._answers)
            waiting.add_done_callback(_forget_failure)
            try:
                await asyncio.to_thread(self._send, name, each)
                await self._within_time(name, waiting)
            except BaseException as error:
                waiting.cancel()
                lost = LearnerLost(f"the call {name} of the learner's ranks was cancelled")
                self.end(error if isinstance(error, LearnerLost) else lost)
                raise
            answers = waiting.result()
        failure = next((a.failure for a in answers if a.failure is not None), None)
        self.version = answers[0].version
        if failure is not None:
            raise failure
        return answers[0].value

    async def close(self) -> None:
        """End all ranks, and free what they were started with."""
        if not self._closed:
            self._closed = True
            self.end(LearnerLost("the learner is closed"))
            for rank in self._ranks:
                await asyncio.to_thread(rank.wait)
            if self._loop is not None:
                for reader in self._readers:
                    # The connection of a rank on a lost machine may stay open.
                    await asyncio.to_thread(reader.join, CLOSE_S)
            await asyncio.to_thread(self.group.free)

    def end(self, reason: LearnerLost) -> None:
        """End all ranks at once. Later calls raise ``reason``."""
        self._lost = self._lost or reason
        for rank in self._ranks:
            rank.kill()

    def _forget(self, task: Task[Any]) -> None:
        self._tasks.discard(task)
        _forget_failure(task)

    def _start_reading(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            for reader in self._readers:
                reader.start()

    def _send(self, name: str, each: Sequence[tuple[Any, ...]]) -> None:
        same = all(args is each[0] for args in each)
        message = pickle.dumps((name, each[0])) if same else b""
        for rank, args in zip(self._ranks, each, strict=True):
            try:
                rank.connection.send_bytes(message or pickle.dumps((name, args)))
            except OSError as error:
                raise LearnerLost(rank.epitaph()) from error

    async def _within_time(self, name: str, waiting: Future[list[Answer]]) -> None:
        """Wait for the answers, as long as there is progress."""
        while not waiting.done():
            self._progressed.clear()
            await asyncio.wait([waiting], timeout=self.timeout_s)
            if not waiting.done() and not self._progressed.is_set():
                raise LearnerLost(
                    f"the learner's ranks made no progress with {name} for {self.timeout_s:g} s "
                    f"(learner.timeout_s)"
                )
        waiting.result()

    def _read(self, rank: ChildProcess) -> None:
        """Take the answers of a rank; runs in a thread."""
        assert self._loop is not None
        try:
            while True:
                answer = pickle.loads(rank.connection.recv_bytes())
                if answer is None:
                    self._progressed.set()
                    if rank.number == 0:
                        self._on_progress()
                    continue
                self._loop.call_soon_threadsafe(self._answered, rank.number, answer)
        except (EOFError, OSError):
            if self._closed:
                return  # What started the rank may be gone.
            rank.wait()
            lost = LearnerLost(rank.epitaph())
            try:
                self._loop.call_soon_threadsafe(self._ended, rank.number, lost)
            except RuntimeError:
                # The loop is closed, and with it every call.
                return

    def _answered(self, rank: int, answer: Answer) -> None:
        if not self._answers[rank].done():
            self._answers[rank].set_result(answer)

    def _ended(self, rank: int, lost: LearnerLost) -> None:
        if self._lost is None:
            self.end(lost)
        if self._answers and not self._answers[rank].done():
            self._answers[rank].set_exception(lost)


def _forget_failure(done: Future[Any]) -> None:
    """Take a failure that no caller waits for, because the call failed before."""
    if not done.cancelled():
        done.exception()
