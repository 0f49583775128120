"""What a call may take: attempts, their deadlines, places, and what it costs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import pytest

import tools
from tools import ToolContext, ToolFailure, ToolResult
from tools.limits import CallLimits, LimitedCalls


def failing(times: int, *, retryable: bool = True, **options):
    """A tool that fails ``times`` times, and the moments of its attempts."""
    began: list[float] = []

    @tools.tool(**options)
    async def shaky() -> str:
        """Answer, after some failures."""
        began.append(time.monotonic())
        if len(began) <= times:
            raise ToolFailure(f"away ({len(began)})", retryable=retryable)
        return "here"

    return shaky, began


async def test_a_failure_that_may_pass_is_retried_after_longer_and_longer_waits():
    tool, began = failing(2, retries=2)
    result = await tool({})
    assert (result.text, result.retries) == ("here", 2)
    assert (await tool({})).retries == 0
    first, second, _ = (later - one for one, later in itertools.pairwise(began))
    assert first >= 0.1 and second >= 0.2


async def test_the_last_attempts_failure_is_the_calls():
    tool, began = failing(9, retries=1)
    with pytest.raises(ToolFailure, match=r"^away \(2\)$") as failed:
        await tool({})
    assert failed.value.retryable and len(began) == 2


async def test_what_will_not_pass_is_not_retried():
    tool, began = failing(1, retryable=False, retries=5)
    with pytest.raises(ToolFailure, match=r"away \(1\)"):
        await tool({})
    assert len(began) == 1


async def test_mistakes_are_answered_at_once():
    attempts = []

    @tools.tool(retries=3)
    async def strict(x: int) -> str:
        """Refuse.

        Args:
            x: Anything.
        """
        attempts.append(x)
        raise tools.BadArguments("no")

    assert (await strict({"x": 1})).error == "no"
    assert "valid integer" in (await strict({"x": "one"})).error
    assert attempts == [1]


async def test_each_attempt_has_the_tools_deadline_and_all_have_the_callers():
    attempts = []

    @tools.tool(timeout_s=0.05, retries=1)
    async def slow(seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        attempts.append(seconds)
        await asyncio.sleep(seconds if len(attempts) == 1 else 0)
        return "done"

    assert (await slow({"seconds": 60})).text == "done"
    assert len(attempts) == 2
    with pytest.raises(ToolFailure, match=r"than the caller's deadline \(0.01 s\)$") as late:
        attempts.clear()
        await slow({"seconds": 60}, ToolContext(timeout_s=0.01))
    assert late.value.retryable


async def test_the_callers_deadline_says_what_went_wrong_before():
    tool, began = failing(99, retries=50)
    before = time.monotonic()
    says = r"deadline \(0.05 s\); attempt 1: away \(1\)$"
    with pytest.raises(ToolFailure, match=says):
        await tool({}, ToolContext(timeout_s=0.05))
    assert time.monotonic() - before < 30
    assert len(began) == 1


async def test_a_blocking_attempt_that_hangs_is_given_up():
    @tools.tool(blocking=True, timeout_s=0.05)
    def hang() -> str:
        """Wait."""
        time.sleep(1.0)
        return "late"

    with pytest.raises(ToolFailure, match=r"longer than timeout_s \(0.05 s\)"):
        await hang({})


async def running_at_once(**options) -> int:
    running, most = 0, 0

    @tools.tool(**options)
    async def busy() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "done"

    await asyncio.gather(*(busy({}) for _ in range(20)))
    return most


async def test_no_more_calls_run_at_once_than_there_are_places():
    assert await running_at_once(max_concurrent=3) == 3
    assert await running_at_once() == 20


def test_places_serve_one_event_loop_after_another():
    calls = LimitedCalls("tool 'look'", CallLimits(max_concurrent=1))

    async def crowd() -> list[int]:
        async def attempt() -> int:
            await asyncio.sleep(0)
            return 1

        return await asyncio.gather(*(calls.run(attempt, 5.0) for _ in range(3)))

    assert [asyncio.run(crowd()) for _ in range(2)] == [[1, 1, 1]] * 2


async def test_a_failed_or_cancelled_call_gives_its_place_back():
    calls = LimitedCalls("tool 'look'", CallLimits(max_concurrent=1, timeout_s=0.02))

    async def forever() -> None:
        await asyncio.sleep(60)

    async def answer() -> int:
        return 7

    with pytest.raises(ToolFailure, match="timeout_s"):
        await calls.run(forever, 5.0)
    cancelled = asyncio.create_task(calls.run(forever, 5.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await calls.run(answer, 0.5) == 7


async def test_waiting_for_a_place_counts_for_the_callers_deadline():
    calls = LimitedCalls("tool 'look'", CallLimits(max_concurrent=1))

    async def forever() -> None:
        await asyncio.sleep(60)

    first = asyncio.create_task(calls.run(forever, 60.0))
    await asyncio.sleep(0)
    with pytest.raises(ToolFailure, match="'look' took longer than the caller's deadline"):
        await calls.run(forever, 0.02)
    first.cancel()


async def test_costs_of_tool_and_result_add_up():
    @tools.tool(cost=0.25)
    async def paid(extra: float) -> ToolResult:
        """Cost.

        Args:
            extra: More.
        """
        return ToolResult("done", cost=extra)

    @tools.tool(cost=0.5)
    async def flat() -> str:
        """Cost."""
        return "done"

    assert (await paid({"extra": 0.5})).cost == 0.75
    assert (await flat({})).cost == 0.5
    assert (await paid({})).cost == 0.0, "a mistake is answered by the schema alone"


async def test_jitter_leaves_the_global_generator_alone():
    state = random.getstate()
    tool, _ = failing(1, retries=1)
    await tool({})
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout_s": 0.0}, r"timeout_s \(0.0\) must be > 0"),
        ({"retries": -1}, r"retries \(-1\) must be >= 0"),
        ({"max_concurrent": 0}, r"max_concurrent \(0\) must be >= 1"),
        ({"cost": -1.0}, r"'shaky': cost \(-1.0\) must be >= 0"),
        ({"cost": float("nan")}, r"cost \(nan\)"),
    ],
)
def test_options_out_of_range_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        failing(0, **options)


def test_a_deadline_that_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="'add': the function is plain, so timeout_s cannot"):

        @tools.tool(timeout_s=1.0)
        def add() -> str:
            """Add."""
            return ""
