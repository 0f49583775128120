"""How an author's functions are called: in a deadline, in a thread, or where the caller stands."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from envs.episode import EnvFailure
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
        self._calls: dict[int, tuple[str, float]] = {}
        """What runs now, and since when, by thread."""
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, who: str) -> Iterator[None]:
        """Watch the body, which is ``who``'s code."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="turnwise-watch", daemon=True)
            self._thread.start()
        ident = threading.get_ident()
        self._calls[ident] = (who, time.monotonic())
        try:
            yield
        finally:
            del self._calls[ident]

    def _look(self) -> None:
        told: set[tuple[str, float]] = set()
        while True:
            time.sleep(self.after_s / 4)
            running = set(self._calls.copy().values())
            for who, since in running - told:
                if time.monotonic() - since > self.after_s:
                    told.add((who, since))
                    logger.warning(
                        "%s has kept the event loop from every other episode for %g s: make it "
                        "async, or set blocking = True",
                        who,
                        self.after_s,
                    )
            told &= running


block_watch = BlockWatch(10.0)
"""Watches every plain author that an asynchronous face calls."""


async def call(
    method: Callable[[A], T | Awaitable[T]],
    argument: A,
    *,
    who: str,
    blocking: bool,
    limit_s: float,
) -> T:
    """Call an author's function and await its answer.

    Args:
        method: plain or ``async``.
        argument: what it is called with.
        who: the environment, for messages.
        blocking: a plain one runs in a thread.
        limit_s: seconds to wait for it; a plain one that runs here cannot be interrupted.

    Raises:
        EnvFailure: it took longer.
    """
    if blocking and not inspect.iscoroutinefunction(method):
        plain = cast(Callable[[A], T], method)
        return await bounded(in_thread(functools.partial(plain, argument)), who, limit_s)
    with block_watch.watch(f"{who}: {method.__name__}"):
        answer = method(argument)
    if inspect.isawaitable(answer):
        return await bounded(answer, who, limit_s)
    return answer


async def bounded(answer: Awaitable[T], who: str, limit_s: float) -> T:
    """Await an answer for ``limit_s`` seconds.

    Raises:
        EnvFailure: it took longer.
    """
    timer = asyncio.timeout(limit_s)
    try:
        async with timer:
            return await answer
    except TimeoutError as error:
        if not timer.expired():
            raise  # The author's own.
        raise EnvFailure(
            f"{who}: a turn waited longer than step_timeout_s ({limit_s:g} s)", retryable=True
        ) from error
