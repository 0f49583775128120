"""Deadlines of turns that wait: one timer for each event loop and time limit.

``asyncio.timeout`` creates and cancels a timer for each wait, which costs as much as a short turn.
Waits with the same limit expire in the order in which they started. One timer, for the oldest wait,
is therefore enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from itertools import count
from typing import Any, TypeVar

from envs.episode import EnvFailure

T = TypeVar("T")


class _Queue:
    """The waits of one event loop that have the same limit, oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.loop, self.limit_s = loop, limit_s
        self.waits: dict[int, tuple[asyncio.Task[Any], float]] = {}
        """Waiting tasks with their deadlines on the loop's clock; expired waits are removed."""
        self.numbers = count()
        self.timer: asyncio.TimerHandle | None = None

    def expire(self) -> None:
        """Cancel expired waits, and set the timer for the next deadline."""
        self.timer = None
        now = self.loop.time()
        for number, (task, deadline) in list(self.waits.items()):
            if deadline > now:
                self.timer = self.loop.call_at(deadline, self.expire)
                return
            del self.waits[number]
            task.cancel()


class _ThreadQueues(threading.local):
    """The queues of this thread's running loop, by limit."""

    loop: asyncio.AbstractEventLoop | None = None
    queues: dict[float, _Queue]

    def queue(self, limit_s: float) -> _Queue:
        """The queue of this thread's loop for waits of this limit."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop, self.queues = loop, {}
        queue = self.queues.get(limit_s)
        if queue is None:
            queue = self.queues[limit_s] = _Queue(loop, limit_s)
        return queue


_queues = _ThreadQueues()


async def bounded(pending: Awaitable[T], env: object, limit_s: float) -> T:
    """Await ``pending`` for at most ``limit_s`` seconds. The caller must be an asyncio task.

    Raises:
        EnvFailure: the awaitable took longer and was cancelled; the message names ``env``.
    """
    queue = _queues.queue(limit_s)
    task = asyncio.current_task(queue.loop)
    assert task is not None, "environments are awaited inside a task"
    cancelling = task.cancelling()
    number, deadline = next(queue.numbers), queue.loop.time() + limit_s
    queue.waits[number] = (task, deadline)
    if queue.timer is None:
        queue.timer = queue.loop.call_at(deadline, queue.expire)
    try:
        return await pending
    except asyncio.CancelledError as error:
        # As in asyncio.timeout: a cancellation by others is passed on.
        if number not in queue.waits and task.cancelling() - 1 <= cancelling:
            raise EnvFailure(
                f"{env}: a turn waited longer than step_timeout_s ({limit_s:g} s)", retryable=True
            ) from error
        raise
    finally:
        if queue.waits.pop(number, None) is None:
            task.uncancel()
