"""Process reward models: the loss by hand, however it is cut, and the scores of steps."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.data.steps import TokenSteps, turn_ends
from rl.learner.settings import OptimizerConfig
from rl.preferences.process_rewards import ProcessUpdater, step_scores
from rl.preferences.reward_model import RewardModel

OPTIMIZER = OptimizerConfig(lr=1e-2, max_grad_norm=1e9)


def solution(generator, turns, labels):
    segment = Segment()
    for turn, said in enumerate(turns):
        segment.append_context(generator.integers(2, 23, 3).tolist(), turn)
        ids = tuple(generator.integers(2, 23, said).tolist())
        completion = Completion(ids, (0.0,) * said, (0,) * said, FinishReason.STOP_TOKEN)
        segment.append_completion(completion, turn)
    return TokenSteps(segment, turn_ends(segment), labels)


@pytest.fixture
def solutions():
    generator = np.random.default_rng(7)
    return [
        solution(generator, [4, 2, 5], (1.0, 1.0, 0.0)),
        solution(generator, [3], (0.375,)),
        solution(generator, [1, 6], (0.0, 0.0)),
    ]


@pytest.fixture
def rewarder(make_model):
    rewarder = RewardModel.from_causal(make_model(dtype=torch.float64))
    with torch.no_grad():
        rewarder.head.weight.normal_(0, 1, generator=torch.Generator().manual_seed(0))
    return rewarder


def test_ends_of_turns(solutions):
    assert solutions[0].ends == (6, 11, 19)
    assert solutions[2].ends == (3, 12)


@pytest.mark.parametrize("max_tokens", [1, 30, 4096])
def test_the_loss_is_the_mean_cross_entropy_of_steps_however_it_is_cut(
    rewarder, solutions, max_tokens
):
    plain = copy.deepcopy(rewarder.model)
    terms = []
    for s in solutions:
        hidden = plain.base_model(input_ids=torch.tensor([s.segment.token_ids])).last_hidden_state
        for end, label in zip(s.ends, s.labels, strict=True):
            p = torch.sigmoid(plain.score(hidden[0, end]))
            terms.append(-(label * p.log() + (1 - label) * (1 - p).log()))
    by_hand = torch.cat(terms).mean()
    by_hand.backward()
    learner = ProcessUpdater(rewarder, OPTIMIZER, max_tokens)
    kept = []
    learner.optimizer.step = lambda: kept.extend(p.grad.clone() for p in rewarder.parameters())
    metrics = learner.update(solutions)
    assert metrics["loss"] == pytest.approx(by_hand.item(), abs=1e-10)
    expected = [p.grad for p in plain.parameters() if p.requires_grad]
    for one, other in zip(kept, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_steps_are_learned_and_scored(make_model, solutions):
    rewarder = RewardModel.from_causal(make_model(dtype=torch.float64))
    learner = ProcessUpdater(rewarder, OPTIMIZER)
    metrics = [learner.update(solutions) for _ in range(60)]
    assert metrics[0]["loss"] == pytest.approx(math.log(2)), "the head begins at 0"
    segments, ends = [s.segment for s in solutions], [s.ends for s in solutions]
    scores = step_scores(rewarder, segments, ends, max_tokens=20)
    assert [len(s) for s in scores] == [3, 1, 2]
    labels = torch.cat([torch.tensor(s.labels, dtype=torch.float64) for s in solutions])
    # Soft labels as well: the probability goes to the label.
    torch.testing.assert_close(torch.cat(scores), labels, rtol=0, atol=0.12)
    assert learner.agreements(solutions) == [1] * 6
    wrong = TokenSteps(solutions[1].segment, solutions[1].ends, (1.0,))
    assert learner.agreements([wrong]) == [0]
    with pytest.raises(ValueError, match=r"max_tokens_per_micro_batch \(0\) must be >= 1"):
        ProcessUpdater(rewarder, OPTIMIZER, 0)
