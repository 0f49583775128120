"""How far ahead groups are played, and which of them an update gets."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.rollout.async_rollouts import GroupStream
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn


class World:
    """Groups that end on request."""

    def __init__(self, prompts: int, staleness: int, max_draws: int = 1) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.noted: list[int] = []
        self.useless: set[int] = set()
        """Numbers of tasks whose groups teach nothing."""
        self.drawn = 0
        self.stream = GroupStream(
            self.play,
            self.draw,
            self.note,
            prompts=prompts,
            staleness=staleness,
            max_draws=max_draws,
        )

    async def play(self, number: int, draw: int, task: int) -> TrajectoryGroup:
        assert draw or task == 100 + number or self.useless
        self.begun.append(task - 100)
        await self.ends.setdefault(task - 100, asyncio.Event()).wait()
        wins = [1.0, 1.0 if task - 100 in self.useless else 0.0]
        return TrajectoryGroup(
            [
                Trajectory("e", {}, task, 0, n, turns=[Turn("", "", "stop_token", 0, {"w": win})])
                for n, win in enumerate(wins)
            ]
        )

    def draw(self, count: int) -> list[int]:
        self.drawn += count
        return list(range(100 + self.drawn - count, 100 + self.drawn))

    def note(self, task: int, group: TrajectoryGroup) -> None:
        self.noted.append(task - 100)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends.setdefault(number, asyncio.Event()).set()

    async def take(self, updates: int) -> list[int]:
        groups = await asyncio.wait_for(self.stream.take(updates), 5)
        return [group.trajectories[0].task - 100 for group in groups]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_without_staleness_a_step_plays_its_own_groups_and_no_others():
    world = World(prompts=2, staleness=0)
    world.end(0, 1, 2, 3)
    assert await world.take(0) == [0, 1]
    await settle()
    assert world.begun == [0, 1]
    world.stream.learned(1)
    await settle()
    assert world.begun == [0, 1, 2, 3]
    assert await world.take(1) == [2, 3]
    await world.stream.close()


async def test_the_capacity_law_bounds_what_begins():
    world = World(prompts=2, staleness=2)
    taking = asyncio.create_task(world.take(0))
    await settle()
    assert world.begun == list(range(6)), "(staleness + updates + 1) * prompts"
    world.end(4, 1)
    assert await taking == [1, 4]
    await settle()
    assert len(world.begun) == 6, "nothing begins before the update is done"
    world.stream.learned(1)
    await settle()
    assert world.begun == list(range(8))
    await world.stream.close()


async def test_the_slowest_is_waited_for_only_when_it_is_as_old_as_it_may_be():
    world = World(prompts=2, staleness=1)
    world.end(1, 2, 3, 4, 5)
    assert await world.take(0) == [1, 2]
    world.stream.learned(1)
    taking = asyncio.create_task(world.take(1))
    await settle()
    assert not taking.done(), "group 0 began before the first update: the second is its last chance"
    world.end(0)
    assert await taking == [0, 3]
    await world.stream.close()


async def test_what_playing_raises_comes_out():
    async def broken(number: int, draw: int, task: int) -> TrajectoryGroup:
        raise RuntimeError("the policy is gone")

    world = World(prompts=2, staleness=1)
    world.stream._play = broken
    with pytest.raises(RuntimeError, match="the policy is gone"):
        await world.take(0)
    await world.stream.close()


async def test_a_group_that_teaches_nothing_gives_its_place_to_another_task_at_once():
    world = World(prompts=2, staleness=0, max_draws=3)
    world.useless = {0, 2, 3}
    taking = asyncio.create_task(world.take(0))
    world.end(0, 1)
    await settle()
    assert sorted(world.begun) == [0, 1, 2], "task 2 in task 0's place"
    world.end(2, 3)
    assert await taking == [0, 1, 2, 3], "by draws; a place gets three tasks and no more"
    assert sorted(world.noted) == [0, 1, 2, 3]
    world.stream.learned(1)
    await settle()
    assert sorted(world.begun) == [0, 1, 2, 3, 4, 5]
    await world.stream.close()


async def test_a_resumed_place_goes_on_with_the_draw_that_ran():
    world = World(prompts=1, staleness=0, max_draws=3)
    world.useless = {0}
    taking = asyncio.create_task(world.take(0))
    world.end(0)
    await settle()
    assert world.begun == [0, 1]
    state = world.stream.snapshot().state_dict()
    taking.cancel()
    await world.stream.close()
    resumed = World(prompts=1, staleness=0, max_draws=3)
    resumed.useless, resumed.drawn = {0}, world.drawn
    resumed.stream.load_state_dict(state, 0)
    resumed.end(1)
    assert await resumed.take(0) == [0, 1]
    assert resumed.begun == [1], "what was played stays played"
    await resumed.stream.close()


async def test_a_resumed_stream_plays_again_what_ran_and_keeps_what_was_done():
    world = World(prompts=2, staleness=2)
    world.end(1, 3, 4)
    assert await world.take(0) == [1, 3]
    state = world.stream.snapshot().state_dict()  # the update under way is lost with the process
    await world.stream.close()
    resumed = World(prompts=2, staleness=2)
    resumed.drawn = world.drawn
    resumed.stream.load_state_dict(state, 0)
    resumed.end(*range(12))
    taken = await resumed.take(0)
    resumed.stream.learned(1)
    taken += await resumed.take(1)
    resumed.stream.learned(2)
    taken += await resumed.take(2)
    assert sorted(taken) == list(range(6)), "every task once"
    assert set(resumed.begun[:3]) == {0, 2, 5}, "only what was running is played again"
    await resumed.stream.close()


async def test_a_checkpoint_never_shows_a_group_half_done():
    world = World(prompts=2, staleness=1)
    world.end(0, 1, 2, 3)
    seen = []
    stop = False

    def look() -> None:
        state = world.stream.snapshot().state_dict()
        seen.extend((bool(a["played"]), a["done"]) for a in state["ahead"])
        if not stop:
            asyncio.get_running_loop().call_soon(look)

    look()
    assert await world.take(0) == [0, 1]
    stop = True
    assert (True, True) in seen
    assert (True, False) not in seen, "a resumed run would draw another task for it"
    await world.stream.close()


async def test_what_was_done_before_a_resume_is_as_old_after_it():
    world = World(prompts=1, staleness=2)
    world.end(1)
    assert await world.take(0) == [1]
    world.stream.learned(1)
    for number in (3, 0, 2):
        world.end(number)
        await settle()
    # 0 and 2 were played with the weights before update 1.
    state = world.stream.snapshot().state_dict()
    await world.stream.close()
    resumed = World(prompts=1, staleness=2)
    resumed.drawn = world.drawn
    resumed.stream.load_state_dict(state, 1)
    taken = []
    for updates in (1, 2, 3):
        taken += await resumed.take(updates)
        resumed.stream.learned(updates + 1)
    assert taken == [0, 2, 3], "from 0 and 2 nothing may be learned after update 2"
    await resumed.stream.close()


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.integers(1, 4),
    staleness=st.integers(0, 3),
    max_draws=st.integers(1, 3),
    useless=st.sets(st.integers(0, 30)),
    order=st.randoms(use_true_random=False),
)
def test_no_group_is_lost_repeated_or_older_than_the_bound(
    prompts, staleness, max_draws, useless, order
):
    async def run() -> None:
        world = World(prompts, staleness, max_draws)
        world.useless = useless if max_draws > 1 else set()
        begun_at: dict[int, int] = {}
        learned: list[int] = []
        for updates in range(6):
            taking = asyncio.create_task(world.take(updates))
            while not taking.done():
                await settle()
                for number in world.begun:
                    begun_at.setdefault(number, updates)
                running = [n for n in world.begun if not world.ends[n].is_set()]
                if running and not taking.done():
                    world.end(order.choice(running))
            batch = await taking
            taught = [number for number in batch if number not in world.useless]
            assert len(taught) <= prompts <= len(batch) <= prompts * max_draws
            if len(taught) < prompts:
                assert len(batch) - len(taught) >= max_draws, "a place's draws are used up"
            assert all(updates - begun_at[number] <= staleness for number in batch)
            learned += batch
            world.stream.learned(updates + 1)
            await settle()
            for number in world.begun:
                begun_at.setdefault(number, updates + 1)
        assert len(learned) == len(set(learned))
        # Whatever was drawn was begun once, and is learned from or still ahead.
        assert sorted(world.begun) == list(range(world.drawn))
        assert sorted(set(world.begun) - set(learned)) == sorted(
            task - 100 for slot in world.stream._slots.values() for task in slot.tasks
        )
        if not world.useless:
            assert len(world.begun) == (staleness + 6 + 1) * prompts
        await world.stream.close()

    asyncio.run(run())


async def test_words_of_any_kind_can_be_read_from_a_checkpoint(tmp_path):
    world = World(prompts=1, staleness=2)
    world.end(0, 1)
    await world.take(0)
    group = world.stream._taken[0].played[0]
    group.trajectories[0].stop_reason = np.str_("from an array")
    torch.save(world.stream.snapshot().state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["ahead"][0]["played"][0][0]["stop_reason"] == "from an array"
    await world.stream.close()


@pytest.fixture
async def complaints():
    """What callbacks of the event loop raised."""
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    yield errors
    loop.set_exception_handler(None)


async def test_a_group_that_is_done_in_the_moment_of_closing_is_no_error(complaints):
    world = World(prompts=1, staleness=2)
    note, closing = world.note, []

    def note_and_close(task, group):
        note(task, group)
        # It closes before the loop wakes the waiters of this group.
        closing.append(asyncio.create_task(world.stream.close()))

    world.stream._finished = note_and_close
    taking = asyncio.create_task(world.stream.take(0))
    await settle()
    world.end(0)
    await settle()
    assert [one.done() for one in closing] == [True]
    assert world.noted == [0]
    assert (world.stream.num_running, complaints) == (0, [])
    taking.cancel()


async def test_a_group_that_takes_no_cancelling_is_no_error(complaints):
    world = World(prompts=1, staleness=2)
    play = world.play

    async def stubborn(number: int, draw: int, task: int) -> TrajectoryGroup:
        try:
            return await play(number, draw, task)
        except asyncio.CancelledError:
            world.end(number)
            return await play(number, draw, task)

    world.stream._play = stubborn
    taking = asyncio.create_task(world.stream.take(0))
    await settle()
    await world.stream.close()
    await settle()
    assert len(world.noted) == 3, "they came to their ends"
    assert (world.stream.num_running, complaints) == (0, [])
    taking.cancel()
