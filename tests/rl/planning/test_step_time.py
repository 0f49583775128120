"""The parts of a step, the fit of their costs, and the split of GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.errors import UsageError
from rl.planning.costs import Costs, fit_costs, least_squares
from rl.planning.gpus import GPUS, MODELS, assumed_costs, least_learners, least_tensor
from rl.planning.placement import Cluster, advice, place
from rl.planning.recorded import PlayedTurn, Recorded, Step
from rl.planning.rollouts import Rollouts, Samplers
from rl.planning.step_time import Setup, Work, learning, predict, work_of

COSTS = Costs(0.01, 0.001, 1e-4, 0.5, 1e-3, 0.2, 0.01, parameters=1e9)
SLOW = replace(GPUS["h100"], link=1e9, network=1e8)


def episodes(count=4, seed=0):
    """Groups of two episodes of one to three turns."""
    draw = np.random.default_rng(seed)
    return [
        [
            [
                PlayedTurn(10 * n, 10, int(draw.integers(5, 60)), float(draw.random()))
                for n in range(int(draw.integers(1, 4)))
            ]
            for _ in range(2)
        ]
        for _ in range(count)
    ]


def recorded(costs, slots, seed, prompts=4):
    """A run that took the seconds of ``costs`` exactly."""
    groups = episodes(prompts, seed)
    rollouts = Rollouts(Samplers(costs.step_s, costs.row_s, costs.prefill_s, slots))
    for number, group in enumerate(groups):
        rollouts.start(number, group)
    while rollouts.busy:
        rollouts.advance(math.inf)
    times = {}
    for one, made in zip(rollouts.ended, rollouts.exposures, strict=True):
        times.setdefault(id(one), []).append(made.simulated_s)
    timed = [
        [[t._replace(generate_s=s) for t, s in zip(e, times[id(e)], strict=True)] for e in group]
        for group in groups
    ]
    tokens = 1000.0 * prompts
    learn_s = costs.learn_fixed_s + costs.learn_token_s * tokens
    other_s = costs.episode_s * 2 * prompts
    now = rollouts.clock.now
    busy = rollouts.clock
    generate_s = (
        costs.step_s * busy.steps + costs.row_s * busy.rows + costs.prefill_s * busy.prefill
    )
    wall_s = now + learn_s + other_s + costs.sync_s
    step = Step(
        *(timed, now, generate_s, learn_s, costs.sync_s, other_s, wall_s),
        *({}, tokens, 100, sum(t.sampled for g in groups for e in g for t in e)),
    )
    return Recorded("run", [step], prompts, 2, slots, 1, 0, 4096, int(1e9), "cpu")


def test_the_fit_finds_the_costs_of_runs_that_had_them():
    costs = replace(COSTS, prefill_s=2e-3)
    runs = [recorded(costs, 64, 0, 12), recorded(costs, 3, 1, 4), recorded(costs, 8, 2, 8)]
    found = fit_costs(runs)
    for name in ("step_s", "row_s", "prefill_s", "learn_fixed_s", "learn_token_s"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=0.05), name
    assert (found.sync_s, found.episode_s) == (pytest.approx(0.2), pytest.approx(0.01))
    # The model then predicts a run that the fit has not seen.
    other = recorded(costs, 16, 5, 16)
    setup = Setup(1, 1, 16, 0, 16)
    assert predict(work_of(other), found, setup).step_s == pytest.approx(
        other.steps[0].wall_s, rel=0.03
    )


def test_the_fixed_cost_of_learning_needs_steps_of_different_sizes():
    one = recorded(COSTS, 64, 0)
    found = fit_costs([one])
    assert found.learn_fixed_s == 0.0
    assert found.learn_token_s == pytest.approx(4.5 / 4000)


def test_runs_that_were_all_played_ahead_are_refused():
    with pytest.raises(UsageError, match=r"run was played ahead .*staleness=2.* staleness=0"):
        fit_costs([replace(recorded(COSTS, 64, 0), staleness=2)])


def test_least_squares_has_no_negative_cost():
    counts = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert least_squares(counts, np.array([3.0, 5.0, 7.0])) == pytest.approx([1.0, 2.0])
    # The best line falls; the best line that does not is constant at the mean.
    assert least_squares(counts, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_learning_on_one_gpu_has_no_communication():
    work = Work(episodes(), learned_tokens=1000.0, longest_row=100)
    one = learning(work, COSTS, Setup(1, 1, 4))
    assert (one.gather_s, one.reduce_s) == (0.0, 0.0)
    assert one.seconds == pytest.approx(0.5 + 4.0)


def test_learning_on_ranks_divides_the_tokens_and_adds_communication():
    work = Work(episodes(), learned_tokens=1000.0, longest_row=100)
    setup = Setup(1, 4, 4, micro_batch_tokens=250, bandwidth=8e9)
    four = learning(work, COSTS, setup)
    assert four.compute_s == pytest.approx(1.0)
    # 1e9 weights x 4 bytes x 3/4 at 8e9 bytes a second is 0.375 s; 1,000 tokens are 4 passes.
    assert four.gather_s == pytest.approx(4 * 0.375)
    assert four.reduce_s == pytest.approx(0.375)
    assert four.seconds == pytest.approx(0.5 + 1.5 + 0.375)
    free = learning(work, COSTS, replace(setup, bandwidth=math.inf))
    assert free.seconds == pytest.approx(0.5 + 1.0)


@given(st.integers(1, 2000), st.integers(1, 1000), st.integers(1, 50))
def test_the_ranks_do_all_the_work_and_no_row_is_divided(ranks, row, prompts):
    work = Work(episodes(), learned_tokens=1000.0, longest_row=row)
    one = learning(work, COSTS, Setup(1, 1, prompts))
    many = learning(work, COSTS, Setup(1, ranks, prompts))
    assert many.compute_s * ranks >= one.compute_s * (1 - 1e-9)
    assert many.compute_s >= COSTS.learn_token_s * row * (1 - 1e-9)
    assert many.compute_s <= one.compute_s
    if not many.row_bound:
        assert many.compute_s * ranks == pytest.approx(one.compute_s)


def test_sync_is_flat_in_the_number_of_samplers():
    work = Work(episodes(), 1000.0, 100)
    few, many = (predict(work, COSTS, Setup(n, 1, 4)) for n in (1, 64))
    assert few.parts["sync"] == many.parts["sync"] == 0.2


def test_the_parts_of_a_synchronous_step_add_up():
    time = predict(Work(episodes(), 1000.0, 100), COSTS, Setup(2, 2, 4, bandwidth=1e9))
    assert sum(time.parts.values()) == pytest.approx(time.step_s)


def test_parts_without_cost_vanish():
    nothing = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    groups = [[[t._replace(env_s=0.0) for t in e] for e in group] for group in episodes()]
    time = predict(Work(groups, 1000.0, 100), nothing, Setup(1, 1, 4, collectors=10**9))
    # What the run's process does for an episode that another one played.
    assert time.step_s == pytest.approx(sum(map(len, groups)) / len(groups) * 4 * 0.25e-3)
    learn = predict(Work(groups, 1000.0, 100), replace(nothing, learn_token_s=1e-3), Setup(1, 1, 4))
    assert learn.step_s - learn.parts["controller"] == pytest.approx(4.0)


def test_the_event_loop_bounds_the_rollouts():
    # 4 groups x 2 episodes x turns x 1.25 ms
    groups = [[[PlayedTurn(0, 0, 1, 0.0)] * 5] * 2]
    free = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    one = predict(Work(groups, 10.0, 10), free, Setup(1, 1, 400))
    assert one.step_s == pytest.approx(400 * 2 * 5 * 1.25e-3)
    assert one.bottleneck == "controller"
    four = predict(Work(groups, 10.0, 10), free, Setup(1, 1, 400, collectors=4))
    assert four.step_s == pytest.approx(one.step_s / 4)


def test_a_large_update_is_simulated_in_part():
    work = Work(episodes(16), 100.0, 100)
    small = predict(work, COSTS, Setup(16, 1, 1024, slots=256))
    large = predict(work, COSTS, Setup(64, 4, 4096, slots=256, collectors=4))
    assert large.wait_s == pytest.approx(small.wait_s, rel=0.02)
    assert large.tokens == pytest.approx(4 * small.tokens, rel=0.02)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 12), st.integers(1, 2), st.sampled_from([1e-4, 2e-3, 2e-2]))
def test_the_split_is_as_fast_as_the_best_of_all_splits(gpus, staleness, token_s):
    work = Work(episodes(6), 1000.0, 50)
    costs = replace(COSTS, learn_token_s=token_s, parameters=0.0)
    setup = Setup(1, 1, 6, staleness, slots=8)
    found = place(work, costs, setup, Cluster(gpus, GPUS["h100"]))
    every = [
        place(work, costs, setup, Cluster(gpus, GPUS["h100"], ranks=ranks)).time.step_s
        for ranks in range(1, gpus)
    ]
    assert found.time.step_s <= min(every) * 1.1
    assert found.setup.samplers + found.setup.ranks == gpus


@pytest.mark.parametrize(("row_s", "token_s", "ranks"), [(0.5, 1e-6, 1), (1e-6, 0.5, 11)])
def test_the_slower_side_gets_the_gpus(row_s, token_s, ranks):
    work = Work(episodes(12), 1000.0, 50)
    costs = replace(COSTS, row_s=row_s, learn_token_s=token_s, parameters=0.0)
    found = place(work, costs, Setup(1, 1, 12, 1), Cluster(12, GPUS["h100"]))
    assert found.setup.ranks == ranks


def test_without_staleness_samplers_and_learner_take_turns_on_all_gpus():
    found = place(Work(episodes(), 1000.0, 50), COSTS, Setup(1, 1, 4), Cluster(8, GPUS["h100"], 2))
    assert (found.setup.samplers, found.setup.ranks, found.shares) == (4, 8, True)


def test_beyond_a_node_the_ranks_use_the_network():
    work = Work(episodes(), 1000.0, 50)
    for gpus, bytes_a_second in ((8, 450e9), (16, 50e9)):
        found = place(work, COSTS, Setup(1, 1, 4), Cluster(gpus, GPUS["h100"]))
        assert found.setup.bandwidth == pytest.approx(0.7 * bytes_a_second)


def test_too_few_gpus_are_refused():
    work = Work(episodes(), 1000.0, 50)
    with pytest.raises(UsageError, match=r"gpus=1 is too few: .*give gpus=2 or more"):
        place(work, COSTS, Setup(1, 1, 4, 1), Cluster(1, GPUS["h100"]))
    with pytest.raises(UsageError, match=r"gpus=4 is too few: the learner needs 8"):
        place(work, COSTS, Setup(1, 1, 4), Cluster(4, GPUS["h100"], least_ranks=8))


def test_assumed_costs_by_hand():
    found = assumed_costs(COSTS, GPUS["h100"], MODELS["4B"], context=1000.0, tensor=1)
    # 8 GB of weights at 60% of 3.35 TB/s
    assert found.step_s == pytest.approx(8e9 / 2.01e12)
    # keys and values: 2 x 36 layers x 8 heads x 128 x 2 bytes = 147,456 bytes a token
    assert MODELS["4B"].kv_bytes == 147456
    assert found.row_s == pytest.approx(147456e3 / 2.01e12 + 8e9 / (0.4 * 989e12))
    assert found.prefill_s == pytest.approx(8e9 / 395.6e12)
    assert 1 / found.learn_token_s == pytest.approx(10302, rel=1e-3)
    # 8 GB at 70% of 50 GB/s
    assert found.sync_s == pytest.approx(8 / 35)
    assert found.episode_s == COSTS.episode_s


def test_large_models_need_several_gpus():
    h100 = GPUS["h100"]
    # 16 bytes a weight: 64 GB for 4B, 525 GB for 32B, of 68 usable GB a GPU
    assert [least_learners(h100, MODELS[name]) for name in ("4B", "8B", "32B")] == [1, 2, 8]
    assert [least_tensor(h100, MODELS[name]) for name in ("4B", "14B", "32B")] == [1, 1, 2]


LONG = [[[PlayedTurn(0, 0, 1000, 0.0)], *([PlayedTurn(0, 0, 10, 0.0)] for _ in range(9))]]
SHORT = [[[PlayedTurn(0, 0, 100, 0.0)]] * 10]
FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("groups", "costs", "setup", "part", "words"),
    [
        (SHORT, replace(FREE, step_s=0.1), Setup(1, 1, 8), "generate", "more GPUs"),
        (SHORT, replace(FREE, step_s=0.1), Setup(1, 1, 1), "generate", "more tasks a step"),
        (LONG, replace(FREE, step_s=0.1), Setup(1, 1, 8), "tail", "staleness=1"),
        (SHORT, replace(FREE, sync_s=9.0), Setup(1, 1, 8), "sync", "lora.rank=16"),
        (SHORT, replace(FREE, episode_s=1.0), Setup(1, 1, 8), "controller", "processes"),
        (SHORT, replace(FREE, learn_token_s=1.0), Setup(1, 1, 8), "learn", "learner.ranks"),
        (
            [[[PlayedTurn(0, 0, 1, 60.0)]] * 10],
            *(FREE, Setup(1, 1, 8), "environment", "80 environments answer at once"),
        ),
    ],
)
def test_the_largest_part_is_named_with_what_moves_it(groups, costs, setup, part, words):
    work = Work(groups, 1000.0, 50)
    found = place(work, costs, setup, Cluster(2, GPUS["h100"]))
    assert found.time.bottleneck == part
    assert words in advice(found)


def test_the_learner_that_waits_for_weights_or_for_a_row_names_the_cause():
    work = Work(SHORT, 1000.0, 50)
    costs = replace(FREE, learn_token_s=1e-3, parameters=1e10)
    slow = place(work, costs, Setup(1, 1, 8, micro_batch_tokens=500), Cluster(2, SLOW))
    assert "raise micro_batch_tokens (1000)" in advice(slow)
    long = replace(costs, parameters=0.0, learn_token_s=1.0)
    row = place(Work(SHORT, 1000.0, 8000), long, Setup(1, 1, 8), Cluster(2, GPUS["h100"]))
    assert "one row keeps a rank busy" in advice(row)


def test_work_with_longer_answers_has_more_tokens():
    work = Work([[[PlayedTurn(10, 4, 20, 1.5)]]], 30.0, 30.0)
    assert work.changed(2.0) == Work([[[PlayedTurn(20, 8, 40, 1.5)]]], 60.0, 60.0)
    assert work.changed(1.0, 2.0) == Work([[[PlayedTurn(10, 4, 20, 3.5)]]], 30.0, 30.0)
    # 20 tokens after 10, the mean sampled token has 20 before it
    assert work.context == 20.0
