"""Gradients of micro-batches are summed in float32, whatever the type of the weights."""

import random

import pytest
import torch

from agents.segment import Segment
from rl.credit.batch import Batch
from rl.learner.optimizer import Optimizer
from rl.learner.scoring import ScoringModel
from rl.learner.settings import OptimizerConfig
from tests.helpers.small_learner import VOCABULARY, build_model

ROWS = 512


def segments(count, length=12):
    """Rows of skewed tokens, so that their gradients have a common direction."""
    drawn = random.Random(0)
    mask = [0] * 2 + [1] * (length - 2)
    rows = []
    for _ in range(count):
        ids = [min(VOCABULARY - 1, int(drawn.expovariate(0.3))) for _ in range(length)]
        rows.append(Segment(ids, mask, [0.0] * length, [0] * length, [0] * length))
    return rows


def gradient(dtype, batch, signs, rows_at_once):
    """The step's gradient, from weights that bfloat16 can represent."""
    model = ScoringModel(build_model(dtype=torch.bfloat16).to(dtype))
    optimizer = Optimizer(model.parameters(), OptimizerConfig(max_grad_norm=1e9))
    for micro in batch.micro_batches(11 * rows_at_once):
        scores = model.score(micro)
        weights = signs[batch.episode_ids[micro.tokens]]
        optimizer.backward(-(scores.logprobs * weights).sum() / batch.num_tokens)
        if dtype == torch.bfloat16:
            assert all(p.grad is None for p in model.parameters())
    optimizer.clip_gradients()
    return torch.cat([p.grad.flatten().double() for p in optimizer._stepped])


@pytest.mark.parametrize("signs", ["equal", "mixed"])
def test_bfloat16_gradients_of_many_micro_batches_are_as_exact_as_of_one(signs):
    drawn = random.Random(1)
    mixed = [drawn.choice((-1.0, 1.0)) for _ in range(ROWS)]
    given = torch.tensor(mixed if signs == "mixed" else [1.0] * ROWS)
    batch = Batch.from_segments(segments(ROWS))
    exact = gradient(torch.float32, batch, given, ROWS)
    one, many = (
        ((gradient(torch.bfloat16, batch, given, rows) - exact).norm() / exact.norm()).item()
        for rows in (ROWS, 1)
    )
    assert 0 < many <= 1.2 * one
