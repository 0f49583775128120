"""The loop thread behind the synchronous API.

turnwise runs an event loop of its own in this thread. The caller's thread waits for it, so
``env.step`` works in scripts, in notebooks and inside a running loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def outcome_of(coroutine: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """A callable that returns the coroutine's result, or raises its exception.

    An exception that exits the process, raised inside a task, would end the loop, and all waiting
    callers would wait for ever.
    """
    try:
        value = await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        exit_ = error

        def exit_process() -> T:
            raise exit_

        return exit_process
    return lambda: value


class LoopThread:
    """An asyncio loop on a daemon thread, started at first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inherited: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion on the loop thread and return its result.

        Raises:
            RuntimeError: the caller is the loop thread, which would wait for itself.
        """
        loop = self._start()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a synchronous method was called inside an asynchronous one: await its "
                "asynchronous counterpart (areset, astep, aclose)"
            )
        future = asyncio.run_coroutine_threadsafe(outcome_of(coroutine), loop)
        try:
            outcome = future.result()
        except BaseException:
            # An interrupted caller (Ctrl-C) leaves no work running.
            future.cancel()
            raise
        return outcome()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="turnwise-envs", daemon=True
                )
                self._thread.start()
                atexit.register(self._stop)
            return self._loop

    def forget(self) -> None:
        """Forget the thread and replace the lock, in a child process after a fork.

        The child does not inherit the thread, and would wait for ever for a lock that was held.
        """
        self._lock = threading.Lock()
        # Not closed: that would close file descriptors that the parent's loop uses.
        self._inherited, self._loop, self._thread = self._loop, None, None

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)


loop_thread = LoopThread()
os.register_at_fork(after_in_child=loop_thread.forget)
