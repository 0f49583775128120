"""Deadlines of what a run gives back at its end, and of the end of its process.

Three things may hang at an end. A part that can be cancelled is: :class:`InTime`. One that cannot
(it holds the event loop, or takes no cancelling) is met by the watchdog, which ends the process.
What comes after them, the end of the event loop and of the threads, has :func:`run_in_time` and
:func:`leave`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from rl.errors import FAILED, UNCLOSED, RunFailure, Unclosed
from rl.run.activity import CLOSE, Activities
from rl.run.stacks import awaited_by, stacks_of_threads

T = TypeVar("T")
_TOLD = 4
LEAVE_S = 10.0
"""Seconds in which a process whose work is over must be gone."""


class InTime(AbstractAsyncContextManager[T], Generic[T]):
    """A context whose end has a deadline.

    Args:
        context: what is entered and left.
        what: it is, in words.
        activities: where its end is told.
        limit_s: seconds that its end may take.

    Raises:
        Unclosed: it took longer, and nothing else is being raised: else that gets a note.
    """

    def __init__(
        self,
        context: AbstractAsyncContextManager[T],
        what: str,
        activities: Activities,
        limit_s: float,
    ) -> None:
        self._context = context
        self._what = what
        self._activities = activities
        self._limit_s = limit_s

    async def __aenter__(self) -> T:
        return await self._context.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        timer = asyncio.timeout(self._limit_s)
        try:
            with self._activities.doing(CLOSE, self._what, "closing"):
                async with timer:
                    return await self._context.__aexit__(kind, error, trace)
        except TimeoutError as late:
            if not timer.expired():
                raise
            told = f"{self._what} did not close within close_s ({self._limit_s:g} s)"
            if error is None:
                raise Unclosed(told) from late
            error.add_note(told)
            return None


def at_end(
    end: Callable[[], Awaitable[None]], what: str, activities: Activities, limit_s: float
) -> InTime[None]:
    """A context that is nothing but its end, which has a deadline; arguments as of the class."""

    @asynccontextmanager
    async def part() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await end()

    return InTime(part(), what, activities, limit_s)


def run_in_time(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """As ``asyncio.run``, which waits for tasks that take no cancelling, and for busy threads.

    Args:
        work: the whole of what is done.
        limit_s: seconds from its end in which its loop must be over; then the process ends, with
            the exit code of what ``work`` raised, else with :data:`UNCLOSED`.
    """
    guard = _Guard(limit_s)

    async def guarded() -> T:
        code = UNCLOSED
        try:
            return await work
        except RunFailure as failure:
            code = failure.exit_code
            raise
        except BaseException:
            code = FAILED
            raise
        finally:
            loop, here = asyncio.get_running_loop(), asyncio.current_task()
            guard.arm(
                code, lambda: awaited_by((t for t in asyncio.all_tasks(loop) if t is not here), 2)
            )

    try:
        return asyncio.run(guarded())
    finally:
        guard.disarm()


def leave(code: int) -> NoReturn:
    """End this process, also where a thread would keep it: after :data:`LEAVE_S`, at once.

    Args:
        code: the exit code; where it is 0 and something would not end, :data:`UNCLOSED`.
    """
    _Guard(LEAVE_S).arm(code or UNCLOSED, lambda: [])
    sys.exit(code)


def end_process(code: int, told: str) -> NoReturn:
    """End this process at once, from any thread, whatever still runs; it says why.

    Servers and sandboxes that it started are watched by processes of their own, which end them.
    """
    with contextlib.suppress(OSError):  # Whoever read it may be gone.
        os.write(2, f"error: {told}\n".encode())
    os._exit(code)


class _Guard:
    """Ends the process unless it is disarmed in time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._over = threading.Event()

    def arm(self, code: int, waits: Callable[[], list[str]]) -> None:
        def watch() -> None:
            if not self._over.wait(self._limit_s):
                waiting = [*waits(), *stacks_of_threads()]
                still = "; ".join(waiting[:_TOLD]) or "nothing that can be named"
                if len(waiting) > _TOLD:
                    still += f"; and {len(waiting) - _TOLD} more"
                told = f"the process did not end within {self._limit_s:g} s, it waits for: {still}"
                end_process(code, told)

        # A daemon: alone among the threads, it goes on while the interpreter waits for the others.
        threading.Thread(target=watch, name="turnwise-end", daemon=True).start()

    def disarm(self) -> None:
        self._over.set()
