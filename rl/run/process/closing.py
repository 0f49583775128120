"""Deadlines for closing a run's components, and for the end of its process.

:class:`InTime` cancels a component that does not close in time. If the component cannot be
cancelled, or blocks the event loop, the watchdog (``rl.run.process.watchdog``) ends the process.
:func:`run_in_time` and :func:`exit_process` end the process if its event loop or a thread does not
finish.
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
from rl.run.process.activity import CLOSE, Activities
from rl.run.process.stacks import awaited_by, stacks_of_threads

T = TypeVar("T")
_SHOWN = 4
EXIT_S = 10.0
"""Seconds within which a process must end after its work."""


class InTime(AbstractAsyncContextManager[T], Generic[T]):
    """A context with a deadline for its exit.

    Args:
        context: the context to enter and exit.
        what: the name of the context, for messages.
        activities: lists the exit while it runs.
        limit_s: seconds that the exit may take.

    Raises:
        Unclosed: the exit took longer than ``limit_s``. If another error is already being raised,
            that error gets a note instead.
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
            message = f"{self._what} did not close within close_s ({self._limit_s:g} s)"
            if error is None:
                raise Unclosed(message) from late
            error.add_note(message)
            return None


def at_end(
    end: Callable[[], Awaitable[None]], what: str, activities: Activities, limit_s: float
) -> InTime[None]:
    """A context whose exit is ``end()``, with a deadline; see :class:`InTime`."""

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await end()

    return InTime(context(), what, activities, limit_s)


def run_in_time(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Run a coroutine like ``asyncio.run``, with a deadline for closing its event loop.

    ``asyncio.run`` itself waits without a deadline for busy threads and for tasks that ignore
    cancellation.

    Args:
        work: the coroutine.
        limit_s: seconds between the end of ``work`` and the end of the event loop. If the loop
            takes longer, this function ends the process. The exit code is that of the error that
            ``work`` raised, or :data:`UNCLOSED` if ``work`` succeeded.
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


def exit_process(code: int) -> NoReturn:
    """Exit this process. If threads still keep it alive after :data:`EXIT_S` seconds, kill it.

    Args:
        code: the exit code. If the code is 0 and the process must be killed, the exit code is
            :data:`UNCLOSED`.
    """
    _Guard(EXIT_S).arm(code or UNCLOSED, lambda: [])
    sys.exit(code)


def end_process(code: int, reason: str) -> NoReturn:
    """Write the reason to stderr and end this process at once, from any thread.

    Guard processes then stop the servers and sandboxes that this process started.
    """
    with contextlib.suppress(OSError):  # The reader of stderr may be gone.
        os.write(2, f"error: {reason}\n".encode())
    os._exit(code)


class _Guard:
    """Ends the process at a deadline, unless :meth:`disarm` is called earlier."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._over = threading.Event()

    def arm(self, code: int, waits: Callable[[], list[str]]) -> None:
        def watch() -> None:
            if not self._over.wait(self._limit_s):
                waiting = [*waits(), *stacks_of_threads()]
                still = "; ".join(waiting[:_SHOWN]) or "nothing that can be named"
                if len(waiting) > _SHOWN:
                    still += f"; and {len(waiting) - _SHOWN} more"
                reason = (
                    f"the process did not end within {self._limit_s:g} s, it waits for: {still}"
                )
                end_process(code, reason)

        # A daemon thread runs on while the interpreter waits for the other threads.
        threading.Thread(target=watch, name="turnwise-end", daemon=True).start()

    def disarm(self) -> None:
        self._over.set()
