"""A run inside a program of the user's own: on an event loop and a thread of its own.

Nothing of it outlives it: no thread, no signal handler, no number of torch's threads. The caller's
event loop, a notebook's for one, is free meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from rl.errors import STALLED, RunStalled, Unclosed
from rl.run.stacks import stacks_of_threads

T = TypeVar("T")
LOOK_EVERY_S = 0.5


class Job(Generic[T]):
    """Work that goes on in a thread; also its ``Host``.

    Args:
        work: called with this job, in the thread; makes the coroutine.
        close_s: seconds in which thread and event loop must be over after the coroutine.
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

    # ---- what the caller may do ------------------------------------------------------------

    def result(self) -> T:
        """Wait; what the work returned. Ctrl-C meanwhile asks it to stop, once more stops at once.

        Raises:
            KeyboardInterrupt: the work was cancelled by it.
            Unclosed: its thread would not end.
        """
        while True:
            try:
                if self._is_over():
                    break
                futures.wait([self._outcome], LOOK_EVERY_S)
            except KeyboardInterrupt:
                self.stop()
        return self._returned(KeyboardInterrupt())

    async def wait(self) -> T:
        """Wait on the caller's event loop; cancelled, the work is asked to stop and waited for.

        Raises:
            CancelledError: this call was cancelled; the work is over.
            Unclosed: as above.
        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._outcome.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        cancelled: asyncio.CancelledError | None = None
        while not self._is_over():
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), LOOK_EVERY_S)
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        if cancelled is not None:
            raise cancelled
        return self._returned(asyncio.CancelledError())

    def stop(self) -> None:
        """Ask the work to stop; a second call cancels it."""
        with self._lock:
            listener, loop, again = self._on_stop, self._loop, self._stopped
            self._stopped = True
            if loop is None or loop.is_closed():
                return
            if listener is not None and not again:
                listener()
            elif self._task is not None:
                loop.call_soon_threadsafe(self._task.cancel)

    # ---- what the work may do: rl.run.host.Host ----------------------------------------------

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

    def end(self, code: int, told: str) -> None:
        """Leave the thread behind: the caller gets an error, and the program goes on."""
        if not self._outcome.done():
            self._outcome.set_exception((RunStalled if code == STALLED else Unclosed)(told))

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            returned = asyncio.run(self._whole())
        # Whatever it raises belongs to the caller.
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
        """Whether there is an outcome and, unless the work was left behind, no thread any more."""
        if self._outcome.done():
            self._thread.join(self._close_s if self._over_at is not None else 0)
            return True
        if self._over_at is None or time.monotonic() - self._over_at <= self._close_s:
            return False
        waits = "; ".join(stacks_of_threads()[:4])
        what = f"the run's event loop did not end within close_s ({self._close_s:g} s): {waits}"
        self.end(0, what)
        return True

    def _returned(self, stopped: BaseException) -> T:
        error = self._outcome.exception()
        cancelled = isinstance(error, (asyncio.CancelledError, futures.CancelledError))
        if self._stopped and (cancelled or type(error) is KeyboardInterrupt):
            raise stopped
        return self._outcome.result()
