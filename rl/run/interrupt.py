"""Ctrl-C and SIGTERM as a request: the run stops between two steps, with a checkpoint."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While the context lasts, the first signal asks to stop; a second Ctrl-C stops at once.

    Args:
        say: told that somebody asked.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Whether somebody asked to stop."""
        return self._asked.is_set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._ask)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or None when a signal comes first: then ``work`` is cancelled."""
        if self.asked:
            work.close()
            return None
        running = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            running.cancel()
            await asyncio.wait((running,))
            # An error while it was being cancelled is an error all the same.
            if not running.cancelled():
                running.result()
            return None
        finally:
            asked.cancel()
            running.cancel()

    def _ask(self) -> None:
        self._asked.set()
        self._release()
        self._say("stopping after this step; Ctrl-C once more stops at once")

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
