"""Calls an environment's ``begin`` and ``turn`` on an event loop.

A function that is not async runs in a thread if the environment declares that its functions block.
Otherwise it runs on the loop, while another thread measures how long it blocks the loop.
"""

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
    """A thread that logs a warning if a function that is not async blocks an event loop.

    The thread cannot interrupt the function.

    Args:
        after_s: seconds of blocking after which the warning is logged. Each call of a function
            logs at most one warning.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.running: dict[int, tuple[object, Callable[[Any], Any], float]] = {}
        """The environment, its running function and the start time, by thread id."""
        self.started = False

    def start(self) -> None:
        """Start the thread that watches."""
        self.started = True
        threading.Thread(target=self._watch, name="turnwise-watch", daemon=True).start()

    def _watch(self) -> None:
        warned: set[tuple[int, float]] = set()
        while True:
            time.sleep(self.after_s / 4)
            calls = {(ident, call[2]): call for ident, call in self.running.copy().items()}
            for key in calls.keys() - warned:
                env, method, since = calls[key]
                if time.monotonic() - since > self.after_s:
                    warned.add(key)
                    logger.warning(
                        "%s: %s has blocked the event loop, and all other episodes, for %g s: make "
                        "it async, or set blocking = True",
                        env,
                        method.__name__,
                        self.after_s,
                    )
            warned &= calls.keys()


block_watch = BlockWatch(10.0)
"""Watches every plain function that the asynchronous API calls."""


def call(
    method: Callable[[A], T | Awaitable[T]], argument: A, env: object, blocking: bool
) -> T | Awaitable[T]:
    """Call an environment's function on an event loop and return its result or an awaitable.

    Args:
        method: ``begin`` or ``turn``, either plain or ``async``.
        argument: the only argument of ``method``.
        env: the environment; messages contain its ``str``.
        blocking: whether a plain function runs in a thread.
    """
    if blocking and not inspect.iscoroutinefunction(method):
        plain = cast(Callable[[A], T], method)
        return in_thread(functools.partial(plain, argument))
    watch, ident = block_watch, threading.get_ident()
    if not watch.started:
        watch.start()
    watch.running[ident] = (env, method, time.monotonic())
    try:
        return method(argument)
    finally:
        del watch.running[ident]
