"""How an author's functions are called on an event loop: in a thread, or here and watched."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from tools.threads import in_thread

logger = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")


class BlockWatch:
    """Says which plain author keeps an event loop from everybody else; it cannot be interrupted.

    Args:
        after_s: seconds after which it is said, once for each call.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.running: dict[int, tuple[object, Callable[[Any], Any], float]] = {}
        """Who runs now, which of its functions, and since when; by thread."""
        self.started = False

    def start(self) -> None:
        """Begin to watch."""
        self.started = True
        threading.Thread(target=self._look, name="turnwise-watch", daemon=True).start()

    def _look(self) -> None:
        told: set[tuple[int, float]] = set()
        while True:
            time.sleep(self.after_s / 4)
            calls = {(ident, call[2]): call for ident, call in self.running.copy().items()}
            for key in calls.keys() - told:
                who, method, since = calls[key]
                if time.monotonic() - since > self.after_s:
                    told.add(key)
                    logger.warning(
                        "%s: %s has kept the event loop from every other episode for %g s: make "
                        "it async, or set blocking = True",
                        who,
                        method.__name__,
                        self.after_s,
                    )
            told &= calls.keys()


block_watch = BlockWatch(10.0)
"""Watches every plain author that an asynchronous face calls."""


def call(
    method: Callable[[A], T | Awaitable[T]], argument: A, who: object, blocking: bool
) -> T | Awaitable[T]:
    """Call an author's function on an event loop; its answer may have to be awaited.

    Args:
        method: plain or ``async``.
        argument: what it is called with.
        who: the environment; its ``str`` stands in messages.
        blocking: a plain one runs in a thread.
    """
    if blocking and not inspect.iscoroutinefunction(method):
        plain = cast(Callable[[A], T], method)
        return in_thread(functools.partial(plain, argument))
    watch, ident = block_watch, threading.get_ident()
    if not watch.started:
        watch.start()
    watch.running[ident] = (who, method, time.monotonic())
    try:
        return method(argument)
    finally:
        del watch.running[ident]
