"""Packed rows of preferences: the gradients of padded rows, with the prompt computed once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.data.comparisons import Pair, TokenComparison
from rl.data.steps import TokenSteps
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.packing.parts import one_row, padded_parts, parts_of
from rl.preferences.policy_reward import PolicyReward
from rl.preferences.process_rewards import ProcessUpdater
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import PreferenceUpdater

OPTIMIZER = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)
LENGTHS = [(5, 12), (7, 7), (1, 20), (30, 4, 9)]
PROMPTS = [40, 33, 3, 60]


def answer(generator, prompt, said):
    segment = Segment()
    segment.append_context(prompt, 0)
    ids = tuple(generator.integers(2, 23, said).tolist())
    completion = Completion(ids, (0.0,) * said, (0,) * said, FinishReason.STOP_TOKEN)
    segment.append_completion(completion, 0)
    return segment


@pytest.fixture
def comparisons():
    """Pairs and a ranking of three, after prompts of 40, 33, 3 and 60 tokens."""
    generator = np.random.default_rng(11)
    made = []
    for length, lengths in zip(PROMPTS, LENGTHS, strict=True):
        prompt = generator.integers(2, 23, length).tolist()
        segments = tuple(answer(generator, prompt, said) for said in lengths)
        pairs = tuple(Pair(0, i, label=0.9) for i in range(1, len(segments)))
        made.append(TokenComparison(segments, pairs))
    return made


def of_policy(model, **settings):
    return PolicyReward(model, 0.3, **settings)


def of_head(model, **settings):
    rewarder = RewardModel.from_causal(model, **settings)
    drawn = torch.Generator().manual_seed(0)
    weight = 0.25 * torch.randn(rewarder.head.weight.shape, generator=drawn)
    with torch.no_grad():
        rewarder.head.weight.copy_(weight)
    return rewarder


def trained(learner, rows, trunk):
    """The gradient of one step, its metrics, and the number of tokens that it computed."""
    found, computed = [], []
    handle = trunk.register_forward_hook(
        lambda _, args, given, out: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    parameters = learner.rewarder.parameters()
    learner.optimizer.step = lambda: found.extend(p.grad.flatten().clone() for p in parameters)
    metrics = learner.update(rows)
    handle.remove()
    return torch.cat(found), metrics, sum(computed)


def step_of(make, model, comparisons, packing, max_tokens=4096, memory=None):
    rewarder = make(model, packing=packing, memory=memory or MemoryConfig())
    learner = PreferenceUpdater(rewarder, OPTIMIZER, max_tokens)
    # Rewards relative to a reference that differs from the model.
    offsets = [tuple(0.1 * i for i in range(len(c.segments))) for c in comparisons]
    rows = [
        TokenComparison(c.segments, c.pairs, offset)
        for c, offset in zip(comparisons, offsets, strict=True)
    ]
    return trained(learner, rows, model.base_model)


def assert_equal(got, expected, relative=5e-6):
    """The learner's bound for shared prefixes in float32 is 5e-6."""
    assert (got[0] - expected[0]).norm() <= relative * expected[0].norm()
    assert expected[0].norm() > 1e-3
    assert got[1] == pytest.approx(expected[1], rel=relative)


@pytest.mark.parametrize("make", [of_policy, of_head])
def test_a_packed_step_equals_a_padded_step_and_computes_prompts_once(
    make_model, make, comparisons
):
    padded = step_of(make, make_model(), comparisons, packing=False)
    packed = step_of(make, make_model(), comparisons, packing=True)
    assert_equal(packed, padded)
    # The 3 tokens of the third prompt are too few to share.
    answers = sum(map(sum, LENGTHS))
    prompts = sum(PROMPTS) + 3
    # A policy does not read the last token of an answer.
    unread = sum(map(len, LENGTHS)) if make is of_policy else 0
    assert packed[2] == prompts + answers - unread
    assert packed[2] < 0.5 * padded[2]


@pytest.mark.parametrize("make", [of_policy, of_head])
@pytest.mark.parametrize("shares", [True, False])
def test_packed_gradients_are_as_exact_as_padded_ones(
    make_model, make, comparisons, shares, monkeypatch
):
    """Their errors in float32 are about 1e-6 of the gradient."""
    if not shares:
        monkeypatch.setattr("rl.packing.prefixes.MIN_SHARED", 1000)
    exact, *_ = step_of(make, make_model(dtype=torch.float64), comparisons, packing=False)
    padded, packed = (
        step_of(make, make_model(), comparisons, packing=packing) for packing in (False, True)
    )
    errors = [((found[0] - exact).norm() / exact.norm()).item() for found in (padded, packed)]
    assert errors[1] < 1.2 * errors[0] + 2e-7
    assert packed[1]["loss"] == pytest.approx(padded[1]["loss"], rel=1e-6)
    assert packed[2] < padded[2]


@pytest.mark.parametrize("make", [of_policy, of_head])
@pytest.mark.parametrize(("max_tokens", "mode"), [(1, "off"), (90, "off"), (90, "on")])
def test_neither_micro_batches_nor_checkpoints_change_the_step(
    make_model, make, comparisons, max_tokens, mode
):
    double = torch.float64
    expected = step_of(make, make_model(dtype=double), comparisons, packing=False)
    memory = MemoryConfig(activation_checkpointing=mode)
    model = make_model(dtype=double)
    found = step_of(make, model, comparisons[::-1], True, max_tokens, memory)
    # Norms are computed in float32 in a float64 model as well.
    assert_equal(found, expected, relative=1e-6)


def test_rewards_of_many_answers_to_a_prompt_compute_it_once(make_model, comparisons):
    segments = [s for c in comparisons for s in c.segments]
    rewards, computed = [], []
    for packing in (False, True):
        rewarder = of_head(make_model(), packing=packing)
        counted = []
        rewarder.trunk.register_forward_hook(
            lambda _, args, given, out, counted=counted: counted.append(given["input_ids"].numel()),
            with_kwargs=True,
        )
        rewards.append(PreferenceUpdater(rewarder, OPTIMIZER).rewards(segments))
        computed.append(sum(counted))
    assert rewards[1] == pytest.approx(rewards[0], rel=1e-5, abs=1e-5)
    assert computed[1] < 0.5 * computed[0]


def test_solutions_of_a_problem_share_it(make_model):
    generator = np.random.default_rng(2)
    problem = generator.integers(2, 23, 50).tolist()
    solutions = [
        TokenSteps(answer(generator, problem, 9), (52, 55, 58), (1.0, 0.5, 0.0)) for _ in range(4)
    ]
    found = []
    for packing in (False, True):
        model = make_model()
        learner = ProcessUpdater(of_head(model, packing=packing), OPTIMIZER)
        found.append(trained(learner, solutions, model.base_model))
    assert_equal(found[1], found[0])
    assert (found[0][2], found[1][2]) == (4 * 59, 50 + 4 * 9)


def rows_of(*lengths):
    return [[[1] * length for length in unit] for unit in lengths]


def test_padded_parts_begin_with_the_longest():
    assert list(padded_parts([3, 9, 4, 1], 9, [1] * 4)) == [[1], [2, 0], [3]]
    assert list(padded_parts([3, 9, 4, 1], 18, [2, 1, 3, 1])) == [[1], [2], [0, 3]]
    assert list(padded_parts([], 5, [])) == []
    assert parts_of(rows_of([3], [9], [4], [1]), 9, 0) == [[1], [2, 0], [3]]
    assert parts_of([], 9, 0) == parts_of([], 9, 1024) == []


def test_packed_parts_count_a_shared_prefix_once():
    prompt = list(range(30))
    units = [[[*prompt, 40 + i], [*prompt, 50 + i]] for i in range(3)]
    # A prompt and six tokens.
    assert parts_of(units, 36, 36) == [[0, 1, 2]]
    # Two of the units: a prompt and four tokens.
    assert sorted(map(sorted, parts_of(units, 35, 35))) in ([[0, 1], [2]], [[0], [1, 2]])
    # A unit is one part, however long.
    assert sorted(parts_of(units, 1, 1)) == [[0], [1], [2]]


def test_places_in_a_row_are_in_the_order_of_the_sequences():
    generator = np.random.default_rng(4)
    prompt = generator.integers(0, 9, 20)
    sequences = [np.concatenate([prompt, generator.integers(0, 9, n)]) for n in (5, 2, 9, 2)]
    sequences.insert(1, generator.integers(0, 9, 7))
    row = one_row(sequences)
    assert len(row.token_ids) == 20 + 5 + 2 + 9 + 2 + 7
    for sequence, places in zip(sequences, row.places, strict=True):
        assert np.array_equal(row.token_ids[places], sequence)
