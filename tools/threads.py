"""Blocking foreign code on a daemon thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Call ``function`` on a daemon thread of its own and return what it does.

    ``asyncio.to_thread`` has a pool: calls that never return fill it, for everybody, and the
    process waits for them at its end. Cancelling this one leaves the call behind, harmless.
    """
    called: concurrent.futures.Future[T] = concurrent.futures.Future()
    # Begun: from here on it cannot be cancelled, and takes its result in any case.
    called.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            called.set_result(context.run(function))
        except StopIteration as error:
            # As a coroutine would: no future takes it.
            called.set_exception(RuntimeError(f"{function} raised {error!r}"))
        # Whatever it raises is the caller's.
        except BaseException as error:
            called.set_exception(error)

    threading.Thread(target=run, name="turnwise-blocking", daemon=True).start()
    return await asyncio.wrap_future(called)
