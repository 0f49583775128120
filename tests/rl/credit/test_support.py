"""Distributions over what top-k and top-p left, from the sampler's record to the learner's loss."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_learner import build_model

from agents.completion import Completion, FinishReason, SamplingParams
from agents.local import LocalPolicy
from rl.credit.batch import Batch
from rl.credit.logprobs import Support, token_head
from rl.learner.model import score_tokens
from rl.learner.scoring import ScoringModel
from rl.learner.token_rewards import TokenRewards
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

SUPPORTS = st.lists(st.lists(st.integers(0, 8), unique=True, max_size=9), min_size=1, max_size=12)


@given(supports=SUPPORTS, data=st.data())
def test_each_token_keeps_its_own_support_in_whatever_order_tokens_are_taken(supports, data):
    support = Support.of([(0, supports)], len(supports))
    picked = data.draw(st.lists(st.integers(0, len(supports) - 1), max_size=15))
    taken = support.of_tokens(torch.tensor(picked, dtype=torch.int64))
    first = data.draw(st.integers(0, len(picked)))
    stop = data.draw(st.integers(first, len(picked)))
    outside = taken.outside(first, stop, 9)
    expected = [
        [bool(supports[i]) and token not in supports[i] for token in range(9)]
        for i in picked[first:stop]
    ]
    assert outside.tolist() == expected


def test_spans_without_a_support_lie_between_those_that_have_one():
    support = Support.of([(1, [[2], []]), (4, [[0, 1]])], 6)
    shapes = [(~row).nonzero()[:, 0].tolist() for row in support.outside(0, 6, 3)]
    assert shapes == [[0, 1, 2], [2], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("max_bytes", [1, 600, 10**6], ids=["row by row", "two rows", "at once"])
def test_the_head_over_a_support_is_the_softmax_of_its_logits_alone(max_bytes):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 6, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(17, 6, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.tensor([3, 0, 16, 5, 5, 9, 1])
    supports = [[3, 4, 8], [], [16], list(range(17)), [5, 6], [0, 9, 11, 16], []]
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)

    def alone(h, w):
        """Row by row, from the logits of the support, picked out before the softmax."""
        logprobs, entropies = [], []
        for row, (target, ids) in enumerate(zip(targets.tolist(), supports, strict=True)):
            ids = ids or list(range(17))
            log_p = (w[ids] @ h[row] / 0.7).log_softmax(-1)
            logprobs.append(log_p[ids.index(target)])
            entropies.append(-(log_p.exp() * log_p).sum())
        return torch.stack(logprobs), torch.stack(entropies)

    def ours(h, w):
        return token_head(h, w, None, targets, 0.7, Support.of([(0, supports)], 7), max_bytes)

    results = []
    for function in (alone, ours):
        logprobs, entropy = function(hidden, weight)
        loss = (weights * logprobs).sum() + (weights.flip(0) * entropy).sum()
        results.append((logprobs, entropy, *torch.autograd.grad(loss, (hidden, weight))))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    assert results[1][0][2] == 0, "a token that had to come is certain"


class TwoTurns:
    """Two turns of a local policy under top-k and top-p, as a trajectory."""

    def __init__(self, sampling: SamplingParams) -> None:
        self.model = build_model()
        self.trajectory = asyncio.run(self._play(sampling))

    async def _play(self, sampling: SamplingParams) -> Trajectory:
        policy = LocalPolicy(self.model, None)
        segment, turns = Segment(), []
        try:
            for turn in range(2):
                segment.append_context([5, 6, 7 + turn], turn)
                completion = await policy.generate(segment.token_ids, sampling)
                segment.append_completion(completion, turn)
                turns.append(Turn("", "", "length", len(completion.token_ids), {"task": 1.0}))
        finally:
            await policy.close()
        return Trajectory("test", {}, 0, 0, 0, [segment], turns, terminated=True)


@pytest.fixture(scope="module")
def cut():
    return TwoTurns(SamplingParams(temperature=0.7, top_p=0.8, top_k=9, max_tokens=30, seed=3))


def ratios(played: TwoTurns, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        logprobs, _ = ScoringModel(played.model, 0.7).score_batch(batch, 10_000)
    return (logprobs - batch.sampling_logprobs).exp()


def test_the_learner_renormalises_over_what_the_sampler_could_choose(cut):
    """Complaint 8 of docs/pains.md: without that the mean ratio was 0.895."""
    batch = Batch.from_groups([TrajectoryGroup([cut.trajectory])])
    assert batch.num_tokens == 60
    assert ratios(cut, batch).tolist() == pytest.approx([1.0] * 60, abs=1e-4)
    biased = ratios(cut, batch.whole_vocabulary())
    assert biased.mean() < 0.95, "nothing was cut: this shows nothing"
    segment = cut.trajectory.segments[0]
    scored = score_tokens(cut.model, segment.token_ids[:33], 0.7, segment.supports[3:33])
    assert scored == pytest.approx(segment.sampling_logprobs[3:33], abs=1e-5)


def test_the_record_survives_its_file_and_its_copy(cut):
    stored = json.loads(json.dumps(cut.trajectory.to_json()))
    back = Trajectory.from_json(stored)
    back.check()
    assert back.segments == cut.trajectory.segments
    twin = back.segments[0].copy()
    twin.append_context([4], 2)
    assert len(twin.supports) == len(twin.token_ids) == len(back.segments[0].supports) + 1


def test_texts_and_token_rewards_use_the_whole_vocabulary(cut):
    segment = cut.trajectory.segments[0]
    assert Batch.from_segments([segment]).support is None
    batch = Batch.from_groups([TrajectoryGroup([cut.trajectory])])
    scores = TokenRewards.scores
    rewarder = object.__new__(TokenRewards)
    rewarder.model, rewarder._max_tokens = ScoringModel(cut.model, 0.7), 10_000
    rewarder._initial = ScoringModel(build_model(seed=1), 0.7)
    assert torch.equal(scores(rewarder, batch), scores(rewarder, batch.whole_vocabulary()))


def completion(tokens, supports):
    logprobs, versions = (-1.0,) * len(tokens), (0,) * len(tokens)
    return Completion(tokens, logprobs, versions, FinishReason.LENGTH, supports)


def test_a_segment_has_supports_only_for_cut_distributions():
    segment = Segment()
    segment.append_context([1, 2], 0)
    segment.append_completion(completion((3,), None), 0)
    assert segment.supports == []
    segment.append_completion(completion((4, 5), ([4, 9], (5,))), 1)
    segment.append_context([1], 1)
    segment.append_completion(completion((3,), None), 2)
    assert segment.supports == [[], [], [], [4, 9], [5], [], []]
    segment.check()


@pytest.mark.parametrize(
    ("supports", "message"),
    [
        ([[], [7]], "token 5 is not in its support"),
        ([[4], [5]], "a support of a token that is not sampled"),
        ([[5]], "not one per token"),
    ],
)
def test_a_record_that_contradicts_itself_is_never_trained_on(supports, message):
    segment = Segment([4, 5], [0, 1], [0.0, -1.0], [-1, 0], [0, 0], supports)
    with pytest.raises(AssertionError, match=message):
        segment.check()
