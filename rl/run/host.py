"""The process that a run is in: the command's own, or the program of a user of the Python API."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from rl.run.closing import end_process

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Host(Protocol):
    """What a run may do with the process that it is in."""

    def listening(self, on_stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``on_stop`` at each request to stop, for as long as the context lasts."""
        ...

    def end(self, code: int, told: str) -> None:
        """End what cannot be ended in order, from any thread.

        Args:
            code: the command's exit code.
            told: why.
        """
        ...


class CommandProcess:
    """A process that does nothing else: signals ask to stop, and it may be ended."""

    @contextmanager
    def listening(self, on_stop: Callable[[], None]) -> Iterator[None]:
        """As :meth:`Host.listening`; Ctrl-C and SIGTERM ask.

        The signals are Python's own, not the loop's: one counts while the loop is busy, too.
        """
        before: dict[signal.Signals, Any] = {}
        try:
            for number in SIGNALS:
                before[number] = signal.signal(number, lambda *_: on_stop())
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self, code: int, told: str) -> None:
        """End the process at once."""
        end_process(code, told)


COMMAND = CommandProcess()
