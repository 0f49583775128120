"""The one loop thread behind every synchronous face.

It makes ``env.step`` work in scripts, notebooks and inside running loops alike: the caller's
thread waits, the work happens on a loop that nobody else stops.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def _outcome(coroutine: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """What returns or raises what the coroutine did, wherever it is called.

    An exit that is raised inside a task ends its loop, and everybody who waits would wait for ever.
    """
    try:
        value = await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        exit_ = error

        def leave() -> T:
            raise exit_

        return leave
    return lambda: value


class LoopThread:
    """An asyncio loop on a daemon thread, started when first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inherited: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to completion on the loop thread and return the result.

        Raises:
            RuntimeError: called from the loop thread itself, which would wait for itself.
        """
        loop = self._start()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a synchronous face was called inside an asynchronous one: await it")
        future = asyncio.run_coroutine_threadsafe(_outcome(coroutine), loop)
        try:
            outcome = future.result()
        except BaseException:
            # An interrupted caller (Ctrl-C) leaves nothing running behind its back.
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
        """Begin anew: in a forked process there is no such thread, and the lock may be held."""
        self._lock = threading.Lock()
        # Kept: closing the loop here would close what the parent process's loop waits for.
        self._inherited, self._loop, self._thread = self._loop, None, None

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)


loop_thread = LoopThread()
os.register_at_fork(after_in_child=loop_thread.forget)
