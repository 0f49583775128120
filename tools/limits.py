"""What a call may take, of a tool or a judge: time, further attempts, a place among few."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tools.tool import ToolFailure

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Before the second attempt, and between any two, in seconds; random up to as much again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What one call may take."""

    timeout_s: float | None = None
    """Seconds of one attempt; None: only the caller's deadline holds, which is for all of them."""
    retries: int = 0
    """Further attempts after a failure that may be retried."""
    max_concurrent: int | None = None
    """Attempts at once (in one event loop); further calls wait in turn. None: any number."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s ({self.timeout_s}) must be > 0")
        if self.retries < 0:
            raise ValueError(f"retries ({self.retries}) must be >= 0")
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError(f"max_concurrent ({self.max_concurrent}) must be >= 1")


class LimitedCalls:
    """The calls of one service, held to its limits.

    Args:
        who: is called, for messages: "tool 'search'".
        limits: what each call may take.
    """

    def __init__(self, who: str, limits: CallLimits) -> None:
        self._who = who
        self._limits = limits
        # Unseeded jitter: many callers must not retry at the same moments.
        self._jitter = random.Random()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    async def run(self, attempt: Callable[[], Awaitable[T]], deadline_s: float | None) -> T:
        """The answer of the first attempt that does not fail.

        Args:
            attempt: what is done, once or more often.
            deadline_s: seconds for all attempts, with the waits before and between them; None
                where the caller has a deadline of its own.

        Raises:
            ToolFailure: the last attempt's own, or no answer within the deadline (retryable).
        """
        last = ""
        timer = asyncio.timeout(deadline_s)
        try:
            async with timer:
                for number in range(1, self._limits.retries + 1):
                    try:
                        return await self._once(attempt)
                    except ToolFailure as failure:
                        if not failure.retryable:
                            raise
                        last = f"; attempt {number}: {failure}"
                    wait_s = min(FIRST_WAIT_S * 2 ** (number - 1), LONGEST_WAIT_S)
                    await asyncio.sleep(wait_s * (1 + self._jitter.random()))
                return await self._once(attempt)
        except TimeoutError as error:
            if deadline_s is None or not timer.expired():
                raise  # The attempt's own.
            raise self._late("the caller's deadline", deadline_s, last) from error

    async def _once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        async with self._place():
            limit_s = self._limits.timeout_s
            timer = asyncio.timeout(limit_s)
            try:
                async with timer:
                    return await attempt()
            except TimeoutError as error:
                if limit_s is None or not timer.expired():
                    raise
                raise self._late("timeout_s", limit_s) from error

    def _place(self) -> AbstractAsyncContextManager[Any]:
        if self._limits.max_concurrent is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._places:
            # A semaphore belongs to one loop; a tool may serve several, one after the other.
            self._places[loop] = asyncio.Semaphore(self._limits.max_concurrent)
        return self._places[loop]

    def _late(self, limit: str, seconds: float, last: str = "") -> ToolFailure:
        return ToolFailure(
            f"{self._who} took longer than {limit} ({seconds:g} s){last}", retryable=True
        )
