"""Daemon threads for functions that can block. A daemon thread does not delay the process's end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Call ``function`` on a new daemon thread and return its result.

    ``asyncio.to_thread`` uses a pool: calls that never return exhaust the pool and delay the end of
    the process. Cancelling ``in_thread`` abandons the call.
    """
    called: concurrent.futures.Future[T] = concurrent.futures.Future()
    # A running future cannot be cancelled, so it always accepts the result.
    called.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            called.set_result(context.run(function))
        except StopIteration as error:
            # Futures refuse StopIteration; coroutines convert it in the same way.
            called.set_exception(RuntimeError(f"{function} raised {error!r}"))
        # The caller gets any exception.
        except BaseException as error:
            called.set_exception(error)

    threading.Thread(target=run, name="turnwise-blocking", daemon=True).start()
    return await asyncio.wrap_future(called)
