"""Ctrl-C and SIGTERM as a request: the run stops between two steps, with a checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While the context lasts, the first signal asks to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Whether somebody asked to stop."""
        return self._asked.is_set()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or None when a signal comes first: then ``work`` is cancelled."""
        running = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            return None
        finally:
            asked.cancel()
            running.cancel()

    def _ask(self) -> None:
        self._asked.set()
        self._release()

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
