"""The simulated rollouts: times computed by hand, laws that hold for all episodes, the real law."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.planning.recorded import PlayedTurn
from rl.planning.rollouts import (
    Pace,
    Rollouts,
    Samplers,
    requests,
    simulate,
    warm_up,
)
from rl.rollout.async_rollouts import GroupStream
from rl.rollout.trajectory import TrajectoryGroup

ONE = Samplers(step_s=1.0, row_s=0.5, prefill_s=0.1, slots=64)
"""A decoding step of b rows takes 1 + b / 2 seconds."""


def turn(sampled, env_s=0.0, prefill=0, context=0):
    return PlayedTurn(context, prefill, sampled, env_s)


def group(*lengths):
    """A group of episodes of one turn."""
    return [[turn(length)] for length in lengths]


def seconds(groups, samplers, **pace):
    return simulate(groups, samplers, Pace(len(groups), **pace)).step_s


def test_an_episode_takes_its_prompt_its_tokens_and_its_environment():
    # 10 x 0.1 + 5 x 1.5 + 2, and the second turn: 4 x 0.1 + 1 x 1.5 + 3
    episode = [turn(5, 2.0, prefill=10), turn(1, 3.0, prefill=4)]
    timeline = simulate([[episode]], ONE, Pace(1))
    assert timeline.step_s == pytest.approx(10.5 + 4.9)
    assert timeline.rollout == pytest.approx(
        {"generate": 10.4, "queue": 0.0, "environment": 5.0, "idle": 0.0}
    )
    assert (timeline.tokens, timeline.rows) == (6, pytest.approx(1.0))


def test_rows_decode_together_until_the_shorter_one_ends():
    # two steps of two rows (2 s each), then two steps of one row (1.5 s each)
    timeline = simulate([group(2, 4)], ONE, Pace(1))
    assert timeline.step_s == pytest.approx(2 * 2.0 + 2 * 1.5)
    assert timeline.rows == pytest.approx(1.5)


def test_a_prompt_stops_all_rows_of_its_sampler():
    # a prompt of 10 tokens arrives when the environment has answered after 1 s
    late = [turn(1, 1.0), turn(1, prefill=10)]
    # 1 step of 2 rows (2 s); 1 s of one row; prompt (1 s); then the rest
    whole = simulate([[late, [turn(3)]]], ONE, Pace(1)).step_s
    # the long row: 2 s, then 2/3 of a step in the second, stop, then 4/3 steps: 1 step of 2 rows
    # until the late row ends, and 1/3 of a step of one row
    assert whole == pytest.approx(2.0 + 1.0 + 1.0 + 2.0 + 1.5 / 3)


def test_requests_beyond_the_slots_wait_for_a_row():
    samplers = Samplers(1.0, 0.5, 0.0, slots=1)
    timeline = simulate([group(2, 4)], samplers, Pace(1))
    assert timeline.step_s == pytest.approx(6 * 1.5)
    # the second waits 3 s beside the first, and both share these seconds
    assert timeline.rollout["queue"] == pytest.approx(1.5)


def test_two_samplers_share_the_rows():
    two = Samplers(1.0, 0.5, 0.1, slots=64, count=2)
    assert seconds([group(2, 4)], two) == pytest.approx(4 * 1.5)
    # A prompt takes as long as on one sampler for its own row.
    assert seconds([[[turn(4, prefill=10)]]], two) == pytest.approx(1.0 + 4 * 1.5)


def test_environments_beyond_their_number_wait():
    free = Samplers(0.0, 0.0, 0.0, slots=64)
    episodes = [[[turn(1, 2.0)] for _ in range(3)]]
    assert seconds(episodes, free) == pytest.approx(2.0)
    assert seconds(episodes, free, environments=1) == pytest.approx(6.0)
    assert seconds(episodes, free, environments=2) == pytest.approx(4.0)


def test_a_synchronous_step_is_the_sum_of_its_parts():
    timeline = simulate([group(2, 4)], ONE, Pace(1, 0, learn_s=3.0, sync_s=0.5, other_s=0.25))
    assert timeline.step_s == pytest.approx(7.0 + 3.75)
    assert timeline.wait_s == pytest.approx(7.0)
    assert timeline.rollout["idle"] == pytest.approx(3.75)


def test_with_staleness_a_step_is_the_slower_of_rollouts_and_learner():
    groups = [group(4)]
    # 4 tokens take 6 s alone; the learner takes 10 s, or 1 s
    slow = simulate(groups, ONE, Pace(1, 1, learn_s=10.0), updates=20)
    assert slow.step_s == pytest.approx(10.0, rel=0.01)
    # Two groups decode together: 4 steps of 2 s give two updates.
    fast = simulate(groups, ONE, Pace(1, 1, learn_s=0.0), updates=20)
    assert fast.step_s == pytest.approx(4.0, rel=0.05)


def test_environments_bound_the_steps_of_a_run_that_plays_ahead():
    """Two environments answer 8 episodes of 5 s: 20 s a step, however far ahead."""
    free = Samplers(0.0, 0.0, 0.0, slots=64)
    groups = [[[turn(1, 5.0)]] * 4] * 2
    for staleness in (0, 1, 2):
        timeline = simulate(groups, free, Pace(2, staleness, learn_s=0.1, environments=2))
        assert timeline.step_s == pytest.approx(20.0 + 0.1 * (staleness == 0), rel=0.03)


def test_new_weights_make_rows_compute_their_context_again():
    rollouts = Rollouts(ONE)
    rollouts.start(0, [[turn(2, context=30)]])
    rollouts.load_weights(4.0)
    while rollouts.busy:
        rollouts.advance(math.inf)
    assert rollouts.clock.now == pytest.approx(4.0 + 30 * 0.1 + 2 * 1.5)


def test_a_large_number_of_slots_and_free_parts_cost_nothing():
    free = Samplers(0.0, 0.0, 0.0, slots=64)
    assert seconds([group(2, 4)], free, learn_s=3.0) == pytest.approx(3.0)


EPISODES = st.lists(
    st.lists(
        st.builds(
            PlayedTurn,
            st.just(0),
            st.integers(0, 20),
            st.integers(1, 30),
            st.sampled_from([0.0, 0.5, 3.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)
GROUPS = st.lists(EPISODES, min_size=1, max_size=5)
FEW = settings(max_examples=60, deadline=None)


@FEW
@given(GROUPS, st.integers(1, 4), st.integers(1, 8))
def test_all_work_is_done_once(groups, count, slots):
    """Rows of all steps are the sampled tokens, and prompts are computed once."""
    samplers = Samplers(1.0, 0.25, 0.1, slots, count)
    made, whole = requests(groups, samplers)
    turns = [turn for group in groups for episode in group for turn in episode]
    assert len(made) == len(turns)
    tokens = sum(turn.sampled for turn in turns)
    # A step in which fewer rows than samplers decode counts a row for each sampler.
    assert whole.rows * count >= tokens - 1e-6
    assert whole.prefill * count == pytest.approx(sum(turn.prefill for turn in turns))
    if count == 1:
        assert whole.rows == pytest.approx(tokens)
        environment = max(sum(t.env_s for t in e) for group in groups for e in group)
        least = whole.steps + 0.25 * tokens + 0.1 * whole.prefill
        assert least - 1e-6 <= whole.simulated_s <= least + environment * len(turns) + 1e-6


@FEW
@given(GROUPS, st.integers(1, 6), st.integers(1, 4))
def test_more_samplers_never_take_longer_for_a_fixed_batch(groups, count, more):
    """Without environments, whose answers come at other times with other samplers."""
    groups = [[[t._replace(env_s=0.0) for t in e] for e in group] for group in groups]
    few = seconds(groups, Samplers(1.0, 0.5, 0.1, 64, count))
    many = seconds(groups, Samplers(1.0, 0.5, 0.1, 64, count + more))
    assert many <= few * (1 + 1e-9)


@FEW
@given(GROUPS, st.integers(1, 3), st.floats(0, 200))
def test_staleness_is_never_slower_than_a_synchronous_run(groups, staleness, learn_s):
    samplers = Samplers(1.0, 0.25, 0.0, 64)
    pace = {"learn_s": learn_s, "other_s": 1.0}
    synchronous = simulate(groups, samplers, Pace(len(groups), **pace), updates=8)
    ahead = simulate(groups, samplers, Pace(len(groups), staleness, **pace), updates=8)
    # Both average 8 updates; what is under way at the ends differs by less than an update.
    assert ahead.step_s <= synchronous.step_s * (1 + 1 / 8)
    assert ahead.step_s >= learn_s + 1.0 - 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose waits take no time: its clock jumps to the next timer."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        select = self._selector.select

        def jump(timeout):
            if timeout:
                self.now += timeout
            return select(0)

        self._selector.select = jump

    def time(self):
        return self.now


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("learn_s", [1.0, 9.0])
def test_the_simulated_law_is_that_of_the_real_rollouts(staleness, learn_s):
    """``GroupStream`` itself, on a clock that jumps, with groups that only wait."""
    lengths = [[2.0, 3.0, 11.0], [4.0, 4.0, 5.0], [1.0, 12.0, 2.0], [6.0, 3.0, 3.0]]
    waits = [max(one) for one in lengths]
    prompts, updates = 2, 40

    async def real():
        async def play(number, draw, task):
            await asyncio.sleep(waits[number % len(waits)])
            return TrajectoryGroup([])

        loop = asyncio.get_running_loop()
        stream = GroupStream(
            play,
            lambda count: [0] * count,
            lambda task, group: None,
            prompts=prompts,
            staleness=staleness,
        )
        start = 0.0
        for done in range(warm_up(staleness) + updates):
            if done == warm_up(staleness):
                start = loop.time()
            await stream.take(done)
            await asyncio.sleep(learn_s)
            stream.learned(done + 1)
        passed = loop.time() - start
        await stream.close()
        return passed / updates

    loop = VirtualLoop()
    try:
        measured = loop.run_until_complete(real())
    finally:
        loop.close()
    # A group of one episode, whose answer takes no time and whose environment waits.
    groups = [[[turn(1, wait)]] for wait in waits]
    free = Samplers(0.0, 0.0, 0.0, slots=10**6)
    simulated = simulate(groups, free, Pace(prompts, staleness, learn_s), updates=updates)
    assert simulated.step_s == pytest.approx(measured, rel=0.01)
