"""Deadlines of turns that wait: one timer for all of an event loop's, not one for each.

``asyncio.timeout`` makes and cancels a timer for each wait, which costs as much as many a turn.
Waits with the same limit expire in the order in which they began: a timer for the oldest is enough.
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
    """Waits of one loop with the same limit, the oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.loop, self.limit_s = loop, limit_s
        self.waits: dict[int, tuple[asyncio.Task[Any], float]] = {}
        """Who waits, and until when by the loop's clock. What has expired is gone."""
        self.numbers = count()
        self.timer: asyncio.TimerHandle | None = None

    def expire(self) -> None:
        """Cancel what waited for too long, and look again when the next one may have."""
        self.timer = None
        now = self.loop.time()
        for number, (task, deadline) in list(self.waits.items()):
            if deadline > now:
                self.timer = self.loop.call_at(deadline, self.expire)
                return
            del self.waits[number]
            task.cancel()


class _Here(threading.local):
    """The queues of the loop that runs in this thread, by their limits."""

    loop: asyncio.AbstractEventLoop | None = None
    queues: dict[float, _Queue]

    def queue(self, limit_s: float) -> _Queue:
        """Where a wait of this thread's loop is put."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop, self.queues = loop, {}
        queue = self.queues.get(limit_s)
        if queue is None:
            queue = self.queues[limit_s] = _Queue(loop, limit_s)
        return queue


_here = _Here()


async def bounded(answer: Awaitable[T], who: object, limit_s: float) -> T:
    """Await an answer for ``limit_s`` seconds, in a task; what it raises is raised here.

    Raises:
        EnvFailure: it took longer, and was cancelled.
    """
    queue = _here.queue(limit_s)
    task = asyncio.current_task(queue.loop)
    assert task is not None, "environments are awaited inside a task"
    cancelling = task.cancelling()
    number, deadline = next(queue.numbers), queue.loop.time() + limit_s
    queue.waits[number] = (task, deadline)
    if queue.timer is None:
        queue.timer = queue.loop.call_at(deadline, queue.expire)
    try:
        return await answer
    except asyncio.CancelledError as error:
        # As in asyncio.timeout: an end that somebody else asked for is theirs.
        if number not in queue.waits and task.cancelling() - 1 <= cancelling:
            raise EnvFailure(
                f"{who}: a turn waited longer than step_timeout_s ({limit_s:g} s)", retryable=True
            ) from error
        raise
    finally:
        if queue.waits.pop(number, None) is None:
            task.uncancel()
