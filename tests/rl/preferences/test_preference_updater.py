"""Learning from comparisons: what the loss of a step is, and that cutting it changes nothing."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.data.comparisons import Pair, TokenComparison
from rl.errors import RunFailure
from rl.learner.settings import OptimizerConfig
from rl.preferences.losses import bradley_terry, ranking_loss
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import PreferenceUpdater, anchored

OPTIMIZER = OptimizerConfig(lr=1e-2, max_grad_norm=1e9)


def answer(generator, prompt, said):
    segment = Segment()
    segment.append_context(prompt, 0)
    ids = tuple(generator.integers(2, 23, said).tolist())
    segment.append_completion(
        Completion(ids, (0.0,) * said, (0,) * said, FinishReason.STOP_TOKEN), 0
    )
    return segment


def comparison(generator, lengths, pairs):
    prompt = generator.integers(2, 23, 4).tolist()
    return TokenComparison(tuple(answer(generator, prompt, n) for n in lengths), tuple(pairs))


@pytest.fixture
def comparisons():
    generator = np.random.default_rng(3)
    return [
        comparison(generator, [5, 2], [Pair(0, 1)]),
        comparison(generator, [3, 9, 1], [Pair(0, 1), Pair(2, 1), Pair(2, 0)]),
        comparison(generator, [1, 7], [Pair(1, 0, margin=0.5, label=0.8)]),
        comparison(generator, [6, 6, 4], [Pair(1, 0), Pair(1, 2)]),
    ]


@pytest.fixture
def rewarder(make_model):
    rewarder = RewardModel.from_causal(make_model(dtype=torch.float64))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        rewarder.head.weight.normal_(0, 1, generator=generator)
    return rewarder


def gradients(rewarder, comparisons, max_tokens):
    """Of one step, from the step of plain gradient descent that it makes."""
    rewarder = RewardModel(copy.deepcopy(rewarder.model))
    learner = PreferenceUpdater(rewarder, OPTIMIZER, max_tokens)
    kept = []
    learner.optimizer.step = lambda: kept.extend(p.grad.clone() for p in rewarder.parameters())
    metrics = learner.update(comparisons)
    return metrics, kept


def test_the_loss_of_a_step_is_the_mean_of_its_prompts(rewarder, comparisons):
    metrics, _ = gradients(rewarder, comparisons, 4096)
    with torch.no_grad():
        scores = [rewarder.score(c.segments) for c in comparisons]
    by_hand = [
        bradley_terry(scores[0][0], scores[0][1]),
        ranking_loss(scores[1], [1, 0, 2]),
        bradley_terry(scores[2][1], scores[2][0], margin=0.5, label=0.8),
        ranking_loss(scores[3], [0, 1, 0]),
    ]
    assert metrics["loss"] == pytest.approx(sum(by_hand).item() / 4, abs=1e-12)
    ahead = [
        s[p.better] - s[p.worse] for s, c in zip(scores, comparisons, strict=True) for p in c.pairs
    ]
    assert metrics["margin"] == pytest.approx(sum(ahead).item() / 7, abs=1e-12)
    assert metrics["accuracy"] == pytest.approx(sum(a.item() > 0 for a in ahead) / 7)


@pytest.mark.parametrize("max_tokens", [1, 20, 45])
def test_micro_batches_and_order_change_nothing(rewarder, comparisons, max_tokens):
    metrics, whole = gradients(rewarder, comparisons, 4096)
    for some in (comparisons, comparisons[::-1]):
        cut_up, parts = gradients(rewarder, some, max_tokens)
        assert cut_up == pytest.approx(metrics, abs=1e-10)
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_an_answers_reward_is_its_last_tokens_alone_and_in_a_batch(rewarder, comparisons):
    segments = [s for c in comparisons for s in c.segments]
    together = PreferenceUpdater(rewarder, OPTIMIZER, 30).rewards(segments)
    for segment, reward in zip(segments, together, strict=True):
        ids = torch.tensor([segment.token_ids])
        with torch.no_grad():
            hidden = rewarder.trunk(input_ids=ids).last_hidden_state[0, -1]
        assert reward == pytest.approx((rewarder.head.weight[0] @ hidden).item(), abs=1e-10)


def test_text_after_an_answer_is_not_read(rewarder, comparisons):
    segment = comparisons[0].segments[0]
    longer = copy.deepcopy(segment)
    longer.append_context([7, 8, 9], 1)
    with torch.no_grad():
        assert rewarder.score([longer]).item() == pytest.approx(
            rewarder.score([segment]).item(), abs=1e-12
        )
    with pytest.raises(ValueError, match="has no token of its own"):
        rewarder.score([Segment([3, 4], [0, 0], [0.0, 0.0], [-1, -1], [0, 0])])


def test_rewards_relative_to_the_reference_start_at_log_2(rewarder, comparisons):
    plain = [comparisons[i] for i in (0, 1, 3)]
    learner = PreferenceUpdater(rewarder, OPTIMIZER)
    relative = anchored(plain, learner.rewards([s for c in plain for s in c.segments]))
    metrics = learner.update(relative)
    assert metrics["margin"] == pytest.approx(0, abs=1e-12)
    # The second prompt's tie leaves two pairs of three.
    assert metrics["loss"] == pytest.approx((2 + 2 / 3) / 3 * math.log(2), abs=1e-12)
    assert learner.update(relative)["loss"] < metrics["loss"]


def test_a_new_head_scores_zero_and_learns(make_model, comparisons):
    rewarder = RewardModel.from_causal(make_model(dtype=torch.float64))
    learner = PreferenceUpdater(rewarder, OPTIMIZER)
    assert learner.rewards(comparisons[1].segments) == [0, 0, 0]
    plain = comparisons[:2]
    metrics = [learner.update(plain) for _ in range(40)]
    assert metrics[0]["loss"] == pytest.approx(math.log(2))
    assert metrics[-1]["loss"] < 0.1
    assert learner.agreements(plain) == [1] * 4
    reversed_label = TokenComparison(plain[0].segments, (Pair(1, 0, label=0.1), Pair(0, 1, 0, 0.5)))
    assert learner.agreements([reversed_label]) == [1], "a toss-up is not counted"


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(rewarder, comparisons):
    learner = PreferenceUpdater(rewarder, OPTIMIZER)
    before = [p.clone() for p in rewarder.parameters()]
    broken = TokenComparison(comparisons[0].segments, (Pair(0, 1, margin=math.inf),))
    with pytest.raises(RunFailure, match="optimizer step 1 has loss nan"):
        learner.update([broken])
    for parameter, old in zip(rewarder.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    with pytest.raises(ValueError, match=r"max_tokens_per_micro_batch \(0\) must be >= 1"):
        PreferenceUpdater(rewarder, OPTIMIZER, 0)
