"""The thread in which weights are used and changed, while the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class LearnerThread:
    """Does one thing after the other: nothing changes weights that it saves or judges by.

    One thread of its own, because torch's thread settings are per thread.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "turnwise-learner")

    async def do(self, work: Callable[..., T], *args: object) -> T:
        """What ``work`` returns; a call that is cancelled leaves it to be done to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def close(self) -> None:
        """End the thread when it has done what it does; cancelled, the call does not wait."""
        try:
            await asyncio.wrap_future(self._thread.submit(int))
        except asyncio.CancelledError:
            self._thread.shutdown(wait=False)
            raise
        self._thread.shutdown(wait=True)
