"""The process of a run, which is either a command or a program that uses the Python API."""

from __future__ import annotations

import gc
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Protocol

from rl.run.process.closing import end_process

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Host(Protocol):
    """A run's access to its process."""

    def listening(self, on_stop: Callable[[], None]) -> AbstractContextManager[None]:
        """While the context lasts, each request to stop calls ``on_stop``."""
        ...

    def short_collections(self) -> AbstractAsyncContextManager[None]:
        """While the context lasts, garbage collections are short, if the run owns the process.

        Enter the context when all packages are imported and the model is loaded.
        """
        ...

    def end(self, code: int, reason: str) -> None:
        """End a run that cannot be closed normally. May be called from any thread.

        Args:
            code: the command's exit code.
            reason: a line for the user.
        """
        ...


class CommandProcess:
    """The process of a command: signals request a stop, and a hung run ends the process."""

    @contextmanager
    def listening(self, on_stop: Callable[[], None]) -> Iterator[None]:
        """While the context lasts, Ctrl-C and SIGTERM call ``on_stop``.

        Python calls the handlers, not the event loop, so they also work while the loop is busy.
        """
        before: dict[signal.Signals, Any] = {}
        try:
            for number in SIGNALS:
                before[number] = signal.signal(number, lambda *_: on_stop())
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @asynccontextmanager
    async def short_collections(self) -> AsyncIterator[None]:
        """While the context lasts, garbage collections skip the objects that exist at its start.

        Half a million objects of torch and transformers exist then. A full collection that visits
        them stops the event loop and all threads for about 0.1 s. A process that has frozen objects
        of its own keeps them frozen, and its collections are its own affair.
        """
        if gc.get_freeze_count():
            yield
            return
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()

    def end(self, code: int, reason: str) -> None:
        """End the process at once."""
        end_process(code, reason)


COMMAND = CommandProcess()
