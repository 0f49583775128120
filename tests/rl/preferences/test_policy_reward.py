"""DPO: a policy's reward against a direct implementation, and however the step is cut."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.data.comparisons import Pair, TokenComparison
from rl.learner.settings import OptimizerConfig
from rl.preferences.losses import dpo_loss
from rl.preferences.policy_reward import PolicyReward
from rl.preferences.updater import PreferenceUpdater, anchored

OPTIMIZER = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)


def answer(generator, turns):
    """``turns`` are (tokens read, tokens said)."""
    segment = Segment()
    for turn, (read, said) in enumerate(turns):
        segment.append_context(generator.integers(2, 23, read).tolist(), turn)
        ids = tuple(generator.integers(2, 23, said).tolist())
        completion = Completion(ids, (0.0,) * said, (0,) * said, FinishReason.STOP_TOKEN)
        segment.append_completion(completion, turn)
    return segment


@pytest.fixture
def comparisons():
    generator = np.random.default_rng(5)
    shapes = [([(3, 2)], [(3, 4)]), ([(2, 1), (1, 3)], [(2, 5), (3, 1)]), ([(6, 7)], [(6, 7)])]
    return [
        TokenComparison(tuple(answer(generator, turns) for turns in pair), (Pair(0, 1),))
        for pair in shapes
    ]


def direct(model, reference, comparison, reduction):
    """An answer's log-ratio, token by token from the whole table of logits."""

    def log_ratio(segment):
        ids = torch.tensor([segment.token_ids])
        differences = model(ids).logits.log_softmax(-1) - reference(ids).logits.log_softmax(-1)
        by_turn = {}
        for place, mask in enumerate(segment.loss_mask):
            if mask:
                said = differences[0, place - 1, segment.token_ids[place]]
                by_turn.setdefault(segment.turn_ids[place], []).append(said)
        if reduction == "turn-mean":
            return sum(sum(turn) / len(turn) for turn in by_turn.values())
        everything = [x for turn in by_turn.values() for x in turn]
        return sum(everything) / (len(everything) if reduction == "mean" else 1)

    better, worse = (log_ratio(segment) for segment in comparison.segments)
    return dpo_loss(better, worse, 0.3)


@pytest.mark.parametrize("max_tokens", [1, 25, 4096])
@pytest.mark.parametrize("reduction", ["sum", "mean", "turn-mean"])
def test_a_step_equals_a_direct_implementation(make_model, comparisons, reduction, max_tokens):
    model, reference = make_model(0, torch.float64), make_model(0, torch.float64)
    learner = PreferenceUpdater(PolicyReward(model, 0.3, reduction), OPTIMIZER, max_tokens)
    rewards = learner.rewards([s for c in comparisons for s in c.segments])
    relative = anchored(comparisons, rewards)
    # Somewhere else than at the reference, so that log-ratios are not 0.
    moved = make_model(1, torch.float64).state_dict()
    model.load_state_dict({k: 0.7 * v + 0.3 * moved[k] for k, v in model.state_dict().items()})
    plain = copy.deepcopy(model)
    kept = []
    learner.optimizer.step = lambda: kept.extend(p.grad.clone() for p in model.parameters())
    metrics = learner.update(relative)
    loss = sum(direct(plain, reference, c, reduction) for c in comparisons) / len(comparisons)
    loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-10)
    for parameter, gradient in zip(plain.parameters(), kept, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-8, atol=1e-10)


def test_an_answer_without_a_token_is_refused(make_model, comparisons):
    rewarder = PolicyReward(make_model(), 0.1)
    silent = Segment([3, 4], [0, 0], [0.0, 0.0], [-1, -1], [0, 0])
    with pytest.raises(ValueError, match="has no token of its own"):
        rewarder.score([comparisons[0].segments[0], silent])
