"""Treats Ctrl-C and SIGTERM as requests to stop: the run saves its progress and ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from rl.errors import RunFailure
from rl.run.process.activity import CLOSE, Activities
from rl.run.process.host import COMMAND, Host

T = TypeVar("T")


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM act like Ctrl-C while the context lasts, so that open resources are closed.

    An existing handler of SIGTERM is kept. Outside the main thread, the context does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    # An event loop has its own handler, which cancels. Scripts ignore SIGINT in the background.
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


class Interrupt:
    """In this context, a first request asks the run to stop, and a second request stops it at once.

    Requests are signals or, in a user's program, calls; see :mod:`rl.run.process.host`.

    Args:
        report: called with a line for the user when the request arrives.
        activities: lists the stopping work, so that the watchdog checks that it ends.
        host: the source of the requests.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        activities: Activities | None = None,
        host: Host = COMMAND,
    ) -> None:
        self._report = report
        self._activities = activities or Activities()
        self._signalled = False
        self._asked = asyncio.Event()
        self._listening = host.listening(self._on_stop)

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._listening.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, RunFailure):
            error.asked_to_stop = self.asked
        self._listening.__exit__(kind, error, trace)

    async def unless_asked(
        self, work: Coroutine[Any, Any, T], save: Callable[[], Awaitable[None]] | None = None
    ) -> T | None:
        """Await ``work``. If a stop is requested first, cancel ``work`` and return None.

        Args:
            work: the coroutine.
            save: called if ``work`` is cancelled. ``save`` does not wait until ``work`` has ended,
                because ``work`` can take too long to end.
        """
        if self.asked:
            work.close()
            if save is not None:
                await save()
            return None
        running = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            running.cancel()
            if save is not None:
                await save()
            with self._activities.doing(CLOSE, "the cancelled work", "closing"):
                await asyncio.wait((running,))
            # An error during the cancellation counts too.
            if not running.cancelled():
                running.result()
            return None
        finally:
            asked.cancel()
            running.cancel()

    def _on_stop(self) -> None:
        if self._signalled:
            raise KeyboardInterrupt
        self._signalled = True
        # A signal may interrupt a print, so the request is reported by the event loop.
        self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        self._asked.set()
        self._report("stopping cleanly; Ctrl-C once more stops at once")
