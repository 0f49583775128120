"""Dispatch and queue of requests, with servers that are made by hand."""

from __future__ import annotations

import asyncio

import pytest

from agents.policy import PolicyFailure
from agents.serving.sampling.dispatch import Dispatcher


class Server:
    """The part of a ManagedServer that a dispatcher uses."""

    def __init__(self, max_num_seqs: int | None) -> None:
        self.max_num_seqs = max_num_seqs
        self.is_ready = True
        self.broken: PolicyFailure | None = None
        self.change = asyncio.Event()

    async def changed(self) -> None:
        await self.change.wait()


def dispatcher_of(*servers: Server, stuck_s: float = 60.0, spare: float = 0.0) -> Dispatcher:
    return Dispatcher(servers, max_num_seqs=3, stuck_s=stuck_s, spare=spare)


async def test_a_server_gets_no_more_requests_than_it_computes_at_once():
    for computed, spare, expected in ((2, 0.0, 2), (None, 0.0, 3), (2, 0.5, 3), (1, 0.25, 2)):
        server = Server(computed)
        dispatcher = dispatcher_of(server, spare=spare)
        asked = [dispatcher.request([n], f"e{n}") for n in range(5)]
        places = [asyncio.create_task(dispatcher.place(request)) for request in asked]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [place.done() for place in places] == [n < expected for n in range(5)]
        for _ in range(5):
            dispatcher.free(server)
            await asyncio.sleep(0)
        await asyncio.gather(*places)


async def test_most_turns_first_then_the_order_of_announcement():
    server = Server(1)
    dispatcher = dispatcher_of(server)
    dispatcher.begin(["a", "b", "c", "d"])
    for session in ("c", "d", "d"):  # c has taken one turn, d two
        await dispatcher.place(dispatcher.request([1], session))
        dispatcher.free(server)
    holder = await dispatcher.place(dispatcher.request([1], "other"))
    order = []

    async def ask(session: str) -> None:
        await dispatcher.place(dispatcher.request([1], session))
        order.append(session)

    waiting = [asyncio.create_task(ask(session)) for session in ("b", "a", "c", "d")]
    await asyncio.sleep(0)
    for _ in range(4):
        dispatcher.free(holder)
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)
    assert order == ["d", "c", "a", "b"]


async def test_episodes_stay_groups_go_together_and_crowds_are_passed_by():
    one, two = Server(8), Server(8)
    dispatcher = dispatcher_of(one, two)

    async def place(prompt: list[int], session: str) -> Server:
        return await dispatcher.place(dispatcher.request(prompt, session))

    first = await place([1], "g0")
    other = two if first is one else one
    assert await place([1], "g1") is first  # 1 running is not above 1.5 times (0 + 1)
    assert await place([1], "g2") is other  # 2 are
    assert await place([1, 5], "g1") is first  # at home: 2 are not above 1.5 times (1 + 1)
    dispatcher.forget()
    assert await place([1, 5, 6], "g1") is other  # 3 run at the first, 1 at the other


async def test_a_request_leaves_a_crowded_server_for_an_idle_one():
    one, two = Server(1), Server(1)
    dispatcher = dispatcher_of(one, two)
    home = await dispatcher.place(dispatcher.request([1], "a"))
    # Its home is full but not crowded: it waits, though the other has room.
    again = asyncio.create_task(dispatcher.place(dispatcher.request([1, 2], "a")))
    await asyncio.sleep(0.01)
    assert not again.done()
    home.is_ready = False
    dispatcher.free(home)
    assert await asyncio.wait_for(again, 5) is (two if home is one else one)


async def test_the_time_of_waiting_is_known_while_it_lasts_and_afterwards():
    server = Server(1)
    dispatcher = dispatcher_of(server)
    await dispatcher.place(dispatcher.request([1], "a"))
    assert dispatcher.queued_s("a") < 0.05
    waits = asyncio.create_task(dispatcher.place(dispatcher.request([1], "b")))
    beside = asyncio.create_task(dispatcher.place(dispatcher.request([1], "b")))
    await asyncio.sleep(0.2)
    during = dispatcher.queued_s("b")
    assert 0.15 < during < 5
    dispatcher.free(server)
    await asyncio.wait({waits, beside}, return_when=asyncio.FIRST_COMPLETED)
    dispatcher.free(server)
    await asyncio.gather(waits, beside)
    settled = dispatcher.queued_s("b")
    # Two that wait beside each other do not wait twice as long.
    assert during <= settled < 2 * during
    await asyncio.sleep(0.05)
    assert dispatcher.queued_s("b") == settled
    assert dispatcher.queued_s("nobody") == 0
    assert dispatcher.take_queued() == (3, pytest.approx(2 * settled, rel=0.2))
    assert dispatcher.take_queued() == (0, 0.0)
    dispatcher.end("b")
    assert dispatcher.queued_s("b") == 0


async def test_who_is_cancelled_leaves_the_queue_and_gives_its_place_back():
    server = Server(1)
    dispatcher = dispatcher_of(server)
    await dispatcher.place(dispatcher.request([1], "a"))
    waits = asyncio.create_task(dispatcher.place(dispatcher.request([1], "b")))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    late = asyncio.create_task(dispatcher.place(dispatcher.request([1], "c")))
    await asyncio.sleep(0)
    dispatcher.free(server)  # c is placed in this moment, and cancelled before it knows
    late.cancel()
    await asyncio.wait([late])
    assert late.cancelled()
    assert await asyncio.wait_for(dispatcher.place(dispatcher.request([1], "d")), 5) is server


async def test_a_queue_that_does_not_move_has_a_deadline_and_one_that_moves_none():
    server = Server(1)
    dispatcher = dispatcher_of(server, stuck_s=0.5)
    await dispatcher.place(dispatcher.request([1], "a"))
    behind = [asyncio.create_task(dispatcher.place(dispatcher.request([1], s))) for s in "bcd"]
    for _ in range(2):
        await asyncio.sleep(0.3)
        dispatcher.free(server)
    # 0.6 s have passed for the last one.
    await asyncio.sleep(0.1)
    assert not behind[2].done()
    with pytest.raises(PolicyFailure, match=r"no server had room.* 0\.5 s") as failure:
        await asyncio.wait_for(behind[2], 5)
    assert failure.value.retryable


async def test_a_recovered_server_gets_requests_and_without_any_server_they_fail():
    server = Server(1)
    server.is_ready = False
    dispatcher = dispatcher_of(server)
    waits = asyncio.create_task(dispatcher.place(dispatcher.request([1], "a")))
    await asyncio.sleep(0.05)
    server.is_ready = True
    server.change.set()
    assert await asyncio.wait_for(waits, 5) is server
    server.broken = PolicyFailure("it burnt", retryable=False)
    with pytest.raises(PolicyFailure, match="no server is left: it burnt"):
        await asyncio.wait_for(dispatcher.place(dispatcher.request([1], "b")), 5)


async def test_only_requests_that_were_placed_count_in_the_mean_wait():
    server = Server(1)
    dispatcher = dispatcher_of(server)
    await dispatcher.place(dispatcher.request([1], "a"))
    waiting = asyncio.create_task(dispatcher.place(dispatcher.request([2], "b")))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert dispatcher.take_queued()[1] < 0.01


async def test_while_it_is_quiet_nothing_runs_and_nothing_is_placed():
    server = Server(2)
    dispatcher = dispatcher_of(server)
    await dispatcher.place(dispatcher.request([1], "a"))

    async def free_soon() -> None:
        await asyncio.sleep(0.05)
        dispatcher.free(server)

    freeing = asyncio.create_task(free_soon())
    async with dispatcher.quiet():
        assert freeing.done()
        waiting = asyncio.create_task(dispatcher.place(dispatcher.request([2], "b")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 30) is server


async def test_requests_that_do_not_end_before_an_update_are_reported():
    server = Server(2)
    dispatcher = dispatcher_of(server, stuck_s=0.05)
    await dispatcher.place(dispatcher.request([1], "a"))
    with pytest.raises(PolicyFailure, match="running requests did not end"):
        async with dispatcher.quiet():
            pass
    assert await dispatcher.place(dispatcher.request([2], "b")) is server
