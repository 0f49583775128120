"""Limits of calls to tools and judges: timeout, retries and concurrency."""

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
"""Seconds of the first and of the longest wait between attempts. Each wait is lengthened by a
random share of 0 to 100%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call."""

    timeout_s: float | None = None
    """Time limit of one attempt in seconds. If None, only the caller's time limit for all attempts
    applies."""
    retries: int = 0
    """Maximum number of further attempts after a retryable failure."""
    max_concurrent: int | None = None
    """Maximum number of concurrent attempts in one event loop, or None for no limit. Further calls
    wait in a queue."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s ({self.timeout_s}) must be > 0")
        if self.retries < 0:
            raise ValueError(f"retries ({self.retries}) must be >= 0")
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError(f"max_concurrent ({self.max_concurrent}) must be >= 1")


class LimitedCalls:
    """Calls one service within ``limits``.

    Args:
        who: the service's name in messages, such as "tool 'search'".
        limits: limits of each call.
    """

    def __init__(self, who: str, limits: CallLimits) -> None:
        self._who = who
        self._limits = limits
        # Unseeded jitter: many callers must not retry at the same moments.
        self._jitter = random.Random()
        self._permits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    async def run(self, attempt: Callable[[], Awaitable[T]], deadline_s: float | None) -> T:
        """Call ``attempt`` until an attempt succeeds or the retries are used up; return its result.

        Args:
            attempt: starts one attempt.
            deadline_s: seconds for all attempts and all waits, or None if the caller has its own
                deadline.

        Raises:
            ToolFailure: the last attempt failed, or a time limit was exceeded (retryable).
        """
        result, _ = await self.run_counted(attempt, deadline_s)
        return result

    async def run_counted(
        self, attempt: Callable[[], Awaitable[T]], deadline_s: float | None
    ) -> tuple[T, int]:
        """The result of :meth:`run`, and the number of retries."""
        last = ""
        timer = asyncio.timeout(deadline_s)
        try:
            async with timer:
                for number in range(1, self._limits.retries + 1):
                    try:
                        return await self._once(attempt), number - 1
                    except ToolFailure as failure:
                        if not failure.retryable:
                            raise
                        last = f"; attempt {number}: {failure}"
                    wait_s = min(FIRST_WAIT_S * 2 ** (number - 1), LONGEST_WAIT_S)
                    await asyncio.sleep(wait_s * (1 + self._jitter.random()))
                return await self._once(attempt), self._limits.retries
        except TimeoutError as error:
            if deadline_s is None or not timer.expired():
                raise  # A timeout inside the attempt.
            raise self._late("the caller's deadline", deadline_s, last) from error

    async def _once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        async with self._permit():
            limit_s = self._limits.timeout_s
            timer = asyncio.timeout(limit_s)
            try:
                async with timer:
                    return await attempt()
            except TimeoutError as error:
                if limit_s is None or not timer.expired():
                    raise
                raise self._late("timeout_s", limit_s) from error

    def _permit(self) -> AbstractAsyncContextManager[Any]:
        if self._limits.max_concurrent is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._permits:
            # A semaphore belongs to one loop; a tool may serve several in sequence.
            self._permits[loop] = asyncio.Semaphore(self._limits.max_concurrent)
        return self._permits[loop]

    def _late(self, limit: str, seconds: float, last: str = "") -> ToolFailure:
        return ToolFailure(
            f"{self._who} took longer than {limit} ({seconds:g} s){last}", retryable=True
        )
