"""How far a server's log-probabilities may be from the learner's: measured, not guessed.

The same weights give the same tokens other log-probabilities where sums are rounded in another
order. By how much depends on a model's size, depth, vocabulary and type, and is measured once: the
learner scores the same tokens alone, in a batch, and token by token through the cache, as a server
generates. A server's kernels differ from each other about as much.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from transformers import PreTrainedModel

LEAST = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Smallest tolerance in nats, by the type of the weights."""
LEAST_COARSE = 0.25
"""For types with few digits, whose kernels round in their own ways."""
MARGIN = 4
"""The tolerance is this many times the noise."""
ROWS, TOKENS = 4, 48
"""The first of the sequences is the probe's own."""


def tolerance_of(model: PreTrainedModel, seed: int = 0) -> float:
    """The largest difference of a log-probability that the same weights may show, in nats.

    Args:
        model: the learner's.
        seed: of the tokens that are scored.
    """
    return max(LEAST.get(model.dtype, LEAST_COARSE), MARGIN * scoring_noise(model, seed))


@torch.no_grad()
def scoring_noise(model: PreTrainedModel, seed: int = 0) -> float:
    """The largest difference between three ways to score the same random tokens, in nats."""
    drawn = random.Random(seed)
    count = model.get_output_embeddings().out_features
    rows = [[drawn.randrange(count) for _ in range(TOKENS)] for _ in range(ROWS)]
    ids = torch.tensor(rows, device=model.device)
    single = [model(input_ids=row[None], use_cache=False).logits for row in ids]
    alone = _logprobs(torch.cat(single), ids)
    batch = _logprobs(model(input_ids=ids, use_cache=False).logits, ids)
    cached = _logprobs(_token_by_token(model, ids), ids)
    return max((alone - other).abs().max().item() for other in (batch, cached))


def _token_by_token(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of ``ids`` (``[rows, n]``): half of them in one pass, then each from the cache."""
    half = ids.shape[1] // 2
    logits, cache = [], None
    for part in (ids[:, :half], *ids[:, half:].split(1, dim=1)):
        output = model(input_ids=part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None])
