"""Ctrl-C and SIGTERM as a request: a run stops with all that it has done so far."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from rl.run.activity import CLOSE, Activities
from rl.run.host import COMMAND, Host

T = TypeVar("T")


@contextmanager
def terminable() -> Iterator[None]:
    """While the context lasts, SIGTERM does what Ctrl-C does: what was opened is closed.

    Whoever has a handler of their own for it keeps that; so does a thread, which can have none.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    # An event loop has its own, which cancels what runs. Scripts ignore it in the background.
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


class Interrupt:
    """While the context lasts, the first signal asks to stop; a second one stops at once.

    Where the run is in a user's program, that asks instead; see :mod:`rl.run.host`.

    Args:
        say: shows the user that the request arrived.
        activities: records that the work is stopping; the watchdog checks that it ends.
        host: passes on the requests to stop.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        activities: Activities | None = None,
        host: Host = COMMAND,
    ) -> None:
        self._say = say
        self._activities = activities or Activities()
        self._signalled = False
        self._asked = asyncio.Event()
        self._listening = host.listening(self._on_stop)

    @property
    def asked(self) -> bool:
        """Whether somebody asked to stop."""
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
        self._listening.__exit__(kind, error, trace)

    async def unless_asked(
        self, work: Coroutine[Any, Any, T], save: Callable[[], Awaitable[None]] | None = None
    ) -> T | None:
        """The result of ``work``, or None when a signal comes first: then ``work`` is cancelled.

        Args:
            work: what is done.
            save: called where it is not: before it is waited for, which may take too long. It
                begins before what is cancelled hears of it.
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
            with self._activities.doing(CLOSE, "what runs when somebody asks to stop", "closing"):
                await asyncio.wait((running,))
            # An error while it was being cancelled is an error all the same.
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
        # The signal may have come in the middle of a print: said, and seen, in the loop's turn.
        self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        self._asked.set()
        self._say("stopping cleanly; Ctrl-C once more stops at once")
