"""Deadlines of turns: one timer for all, and every wait its own end."""

from __future__ import annotations

import asyncio
import time

import pytest

from envs.base.deadlines import _queues, bounded
from envs.episode import EnvFailure


async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"slept {seconds}"


async def test_each_wait_has_its_own_deadline_and_one_timer_serves_them_all():
    limit_s = 0.1
    ends: list[float] = []

    async def late(begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        began = time.monotonic()
        with pytest.raises(EnvFailure, match=r"^slow: a turn waited longer than .* \(0.1 s\)$"):
            await bounded(sleeps(30), "slow", limit_s)
        ends.append(time.monotonic() - began)

    quick = [bounded(sleeps(0.001), "quick", limit_s) for _ in range(50)]
    waiting = asyncio.gather(*(late(delay) for delay in (0, 0.03, 0.06)), *quick)
    await asyncio.sleep(0)
    queue = _queues.queue(limit_s)
    assert queue.timer is not None
    await waiting
    assert len(ends) == 3
    assert all(0.099 <= end < 2 for end in ends), ends
    assert queue.waits == {}


async def test_different_limits_do_not_wait_for_one_another():
    async def failing(limit_s: float) -> float:
        began = time.monotonic()
        with pytest.raises(EnvFailure):
            await bounded(sleeps(30), "slow", limit_s)
        return time.monotonic() - began

    first, second = await asyncio.gather(failing(5.0 / 10), failing(0.05))
    assert second < first
    assert first >= 0.499


async def test_a_wait_that_ends_in_time_is_left_alone_afterwards():
    assert await bounded(sleeps(0.01), "quick", 0.05) == "slept 0.01"
    await asyncio.sleep(0.08)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_cancellation_by_the_caller_stays_a_cancellation():
    task = asyncio.create_task(bounded(sleeps(30), "slow", 5.0))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_by_both_is_cancelled():
    async def stubborn() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            outer.cancel()
            raise

    outer = asyncio.create_task(bounded(stubborn(), "slow", 0.02))
    with pytest.raises(asyncio.CancelledError):
        await outer


async def test_an_answer_that_comes_after_all_is_the_answer():
    async def deaf() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "here"
        return "never"

    async def waits() -> tuple[str, int]:
        answer = await bounded(deaf(), "slow", 0.02)
        task = asyncio.current_task()
        assert task is not None
        return answer, task.cancelling()

    assert await asyncio.create_task(waits()) == ("here", 0)


async def test_an_inner_wait_expires_before_the_outer():
    async def outer() -> str:
        with pytest.raises(EnvFailure, match="inner"):
            await bounded(sleeps(30), "inner", 0.02)
        return "went on"

    assert await bounded(outer(), "outer", 10.0) == "went on"


def test_loops_one_after_another_have_their_own_timers():
    for _ in range(2):
        with pytest.raises(EnvFailure):
            asyncio.run(bounded(sleeps(30), "slow", 0.02))
