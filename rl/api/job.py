"""Runs a command inside a user's own program, in a thread with its own event loop.

No thread or signal handler outlives the run. The caller's event loop stays free, as in a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from rl.errors import STALLED, RunStalled, Unclosed
from rl.run.process.stacks import stacks_of_threads

T = TypeVar("T")
POLL_EVERY_S = 0.5


class Job(Generic[T]):
    """Work that runs in a thread. It is also the work's :class:`~rl.run.process.host.Host`.

    Args:
        work: function that is called in the thread with this job, and returns the coroutine to run.
        close_s: seconds that the thread and its event loop may take to end after the coroutine.
    """

    def __init__(self, work: Callable[[Job[T]], Coroutine[Any, Any, T]], close_s: float) -> None:
        self._work = work
        self._close_s = close_s
        self._outcome: futures.Future[T] = futures.Future()
        self._lock = threading.Lock()
        self._on_stop: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._stopped = False
        self._over_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="turnwise-run", daemon=True)
        self._thread.start()

    # ---- for the caller ----------------------------------------------------------------------

    def result(self) -> T:
        """Wait for the result. Ctrl-C asks the work to stop, and a second Ctrl-C cancels it.

        Raises:
            KeyboardInterrupt: Ctrl-C cancelled the work.
            Unclosed: the work's thread did not end.
        """
        while True:
            try:
                if self._is_over():
                    break
                futures.wait([self._outcome], POLL_EVERY_S)
            except KeyboardInterrupt:
                self.stop()
        return self._returned(KeyboardInterrupt())

    async def wait(self) -> T:
        """Await the result. Cancelling this call asks the work to stop and waits for its end.

        Raises:
            CancelledError: this call was cancelled, and the work has ended.
            Unclosed: the work's thread did not end.
        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._outcome.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        cancelled: asyncio.CancelledError | None = None
        while not self._is_over():
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), POLL_EVERY_S)
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        if cancelled is not None:
            raise cancelled
        return self._returned(asyncio.CancelledError())

    def stop(self) -> None:
        """Ask the work to stop. A second call cancels it."""
        with self._lock:
            listener, loop, again = self._on_stop, self._loop, self._stopped
            self._stopped = True
            if loop is None or loop.is_closed():
                return
            if listener is not None and not again:
                listener()
            elif self._task is not None:
                loop.call_soon_threadsafe(self._task.cancel)

    # ---- for the work (Host) -----------------------------------------------------------------

    @contextmanager
    def listening(self, on_stop: Callable[[], None]) -> Iterator[None]:
        """While the context lasts, the first :meth:`stop` calls ``on_stop``."""
        with self._lock:
            self._on_stop, asked = on_stop, self._stopped
        if asked:
            on_stop()
        try:
            yield
        finally:
            with self._lock:
                self._on_stop = None

    def short_collections(self) -> AbstractAsyncContextManager[None]:
        """A context without effect: the program decides about its garbage collection."""
        return nullcontext()

    def end(self, code: int, reason: str) -> None:
        """Abandon the thread. The caller gets an error, and the program continues."""
        if not self._outcome.done():
            self._outcome.set_exception((RunStalled if code == STALLED else Unclosed)(reason))

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            returned = asyncio.run(self._whole())
        # The caller gets every exception.
        except BaseException as error:
            if not self._outcome.done():
                self._outcome.set_exception(error)
        else:
            if not self._outcome.done():
                self._outcome.set_result(returned)

    async def _whole(self) -> T:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._stopped and self._task is not None:
                self._task.cancel()
        try:
            return await self._work(self)
        finally:
            self._over_at = time.monotonic()

    def _is_over(self) -> bool:
        """Whether there is an outcome. Then also waits for the thread, unless it was abandoned."""
        if self._outcome.done():
            self._thread.join(self._close_s if self._over_at is not None else 0)
            return True
        if self._over_at is None or time.monotonic() - self._over_at <= self._close_s:
            return False
        waits = "; ".join(stacks_of_threads()[:4])
        reason = f"the run's event loop did not end within close_s ({self._close_s:g} s): {waits}"
        self.end(0, reason)
        return True

    def _returned(self, stopped: BaseException) -> T:
        error = self._outcome.exception()
        cancelled = isinstance(error, (asyncio.CancelledError, futures.CancelledError))
        if self._stopped and (cancelled or type(error) is KeyboardInterrupt):
            raise stopped
        return self._outcome.result()
