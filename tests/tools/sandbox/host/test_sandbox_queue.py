"""The queue of the sandbox: round-robin of owners, cancelled callers, and the limit."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.owner import acting_for, current_owner
from tools.sandbox.host.queue import FairQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(queue: FairQueue, owner: str, order: list[str]) -> None:
    with acting_for(owner):
        await queue.acquire()
    order.append(owner)


async def test_owners_are_served_in_turn_and_each_in_its_order():
    queue, order = FairQueue(1), []
    await queue.acquire()
    tasks = [asyncio.create_task(ask(queue, "greedy", order)) for _ in range(200)]
    await settle()
    assert (queue.waiting, queue.in_flight) == (200, 1)
    tasks += [asyncio.create_task(ask(queue, name, order)) for name in ("one", "two", "one")]
    await settle()
    for _ in range(6):
        queue.release()
        await settle()
    assert order == ["greedy", "one", "two", "greedy", "one", "greedy"]
    for _ in range(198):
        queue.release()
        await settle()
    await asyncio.gather(*tasks)
    assert (queue.waiting, queue.in_flight, queue.served) == (0, 0, 204)


async def test_callers_of_one_owner_come_in_order():
    queue, order = FairQueue(2), []

    async def one(number: int) -> None:
        with acting_for("me"):
            async with queue:
                order.append(number)
                await asyncio.sleep(0)

    await asyncio.gather(*map(one, range(20)))
    assert order == list(range(20))


async def test_an_owner_reaches_tasks_made_for_it_and_a_task_owns_itself():
    async def owner():
        return current_owner()

    with acting_for("episode 7"):
        made = asyncio.create_task(owner())
    assert await made == "episode 7"
    assert current_owner() is asyncio.current_task()
    other = asyncio.create_task(owner())
    assert await other is other


async def test_a_new_caller_does_not_overtake_a_waiting_one():
    queue, order = FairQueue(1), []
    await queue.acquire()
    first = asyncio.create_task(ask(queue, "first", order))
    await settle()
    queue.release()
    # The first caller already has the permit, although its task has not run yet.
    second = asyncio.create_task(ask(queue, "second", order))
    await settle()
    assert order == ["first"]
    queue.release()
    await asyncio.gather(first, second)


async def test_a_caller_cancelled_with_its_permit_passes_it_on():
    queue, order = FairQueue(1), []
    await queue.acquire()
    tasks = [asyncio.create_task(ask(queue, name, order)) for name in "ab"]
    await settle()
    queue.release()
    tasks[0].cancel()
    await settle()
    assert tasks[0].cancelled() and order == ["b"]
    queue.release()
    assert (queue.waiting, queue.in_flight, queue.served) == (0, 0, 2)


async def test_a_cancelled_caller_is_gone_at_once():
    queue = FairQueue(1)
    await queue.acquire()
    waiters = [asyncio.create_task(ask(queue, "me", [])) for _ in range(3)]
    await settle()
    waiters[1].cancel()
    await settle()
    assert queue.waiting == 2
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert (queue.waiting, len(queue._owners)) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2**32), st.floats(0, 1))
def test_no_interleaving_loses_a_permit(permits, seed, cancels):
    """Callers arrive, run, fail and are cancelled at random; at the end, every permit is free."""
    rng = random.Random(seed)

    async def scenario() -> None:
        queue, running, served = FairQueue(permits, max_waiting=5), 0, 0

        async def caller(owner: int) -> None:
            nonlocal running, served
            with acting_for(owner):
                async with queue:
                    running += 1
                    served += 1
                    assert running <= permits
                    try:
                        for _ in range(rng.randrange(4)):
                            await asyncio.sleep(0)
                        if rng.random() < 0.1:
                            raise ValueError
                    finally:
                        running -= 1

        tasks: list[asyncio.Task[None]] = []
        for _ in range(120):
            tasks.append(asyncio.create_task(caller(rng.randrange(4))))
            while rng.random() < 0.6:
                await asyncio.sleep(0)
            if rng.random() < cancels:
                rng.choice(tasks).cancel()
                if rng.random() < 0.5:
                    rng.choice(tasks).cancel()
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(e) for e in ended} <= {type(None), ValueError, asyncio.CancelledError}
        assert (queue.waiting, queue.in_flight, queue.full) == (0, 0, False)
        # A caller cancelled after it got its permit returned the permit unused.
        assert served <= queue.served <= len(tasks)
        async with asyncio.timeout(60):
            await queue.ready()
            for _ in range(permits):
                await queue.acquire()

    asyncio.run(scenario())


async def test_ready_holds_back_while_the_queue_is_full():
    queue = FairQueue(1, max_waiting=3)
    await queue.acquire()
    waiters = [asyncio.create_task(ask(queue, "me", [])) for _ in range(4)]
    await settle()
    held = [asyncio.create_task(queue.ready()) for _ in range(3)]
    await settle()
    assert queue.full and not any(task.done() for task in held)
    queue.release()
    await settle()
    assert queue.waiting == 3 and not any(task.done() for task in held)
    waiters[3].cancel()  # a cancelled caller makes room too
    await settle()
    assert queue.waiting == 2 and all(task.done() for task in held)
    for _ in range(3):
        queue.release()
        await settle()
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_waits_are_measured():
    queue = FairQueue(1)
    assert (queue.busy_s, queue.wait_p95_s()) == (0.0, 0.0)

    async def one(seconds: float) -> None:
        async with queue:
            await asyncio.sleep(seconds)

    await asyncio.gather(one(0.1), one(0.1), one(0.0))
    assert queue.waited_s == pytest.approx(0.3, abs=0.1)
    assert queue.busy_s == pytest.approx(0.2, abs=0.1)
    assert queue.wait_p95_s() == pytest.approx(0.1, abs=0.09)  # the second of 0, 0.1 and 0.2
    await asyncio.sleep(0.2)
    assert queue.busy_s < 0.35
    for _ in range(100):
        await one(0.0)
    assert queue.wait_p95_s() == 0.0
    assert queue.served == 103
