"""From logits to tokens: temperature, nucleus, and one stream of random numbers per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_BLOCK = 64
_SHORTLIST = 256


class Sampled(NamedTuple):
    """One sampled token per row, ``[B]`` each."""

    token_ids: Tensor
    logprobs: Tensor
    """Under the sampling temperature, before top-p; fp32."""


def uniforms(seed: int) -> Iterator[float]:
    """Endless numbers in [0, 1) that depend on ``seed`` alone.

    Philox4x32-10 keyed by the seed (Salmon et al. 2011, section 3): streams of different keys are
    independent, so a request samples the same completion whatever else is in the batch.
    """
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    while True:
        yield from generator.random(_BLOCK, dtype=np.float32).tolist()


def sample(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    uniform: Sequence[float],
) -> Sampled:
    """Sample one token per row by inverting the cumulative distribution at ``uniform``.

    Args:
        logits: ``[B, V]``, fp32.
        temperatures: logits are divided by it; 0 takes the most likely token, and its
            log-probability is that at temperature 1.
        top_ps: each row samples from the smallest set of tokens whose mass reaches it.
        uniform: numbers in [0, 1), one per row.
    """
    device = logits.device
    if any(t != 1.0 for t in temperatures):
        divisor = torch.tensor([t or 1.0 for t in temperatures], device=device)
        scaled = logits / divisor[:, None]
    else:
        scaled = logits
    logprobs = scaled.log_softmax(-1)
    greedy = [t == 0.0 for t in temperatures]
    if all(greedy):
        token_ids = logits.argmax(-1)
    else:
        u = torch.tensor(uniform, device=device)
        token_ids = _draw(logprobs.exp(), u)
        nucleus = [i for i, p in enumerate(top_ps) if p < 1.0 and not greedy[i]]
        if nucleus:
            rows = torch.tensor(nucleus, device=device)
            mass = torch.tensor([top_ps[i] for i in nucleus], device=device)
            token_ids[rows] = _draw_nucleus(logprobs[rows].exp(), mass, u[rows])
        if any(greedy):
            chosen = torch.tensor(greedy, device=device)
            token_ids = torch.where(chosen, logits.argmax(-1), token_ids)
    return Sampled(token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0])


def _draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Token ids ``[B]`` from ``probs [B, V]``; a token without mass is never drawn."""
    cumulative = probs.cumsum(-1)
    # Scaled by the total, which rounding leaves near 1: u < 1 then stays below the last entry.
    point = uniform[:, None] * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, point, right=True)
    return found[:, 0].clamp_max(probs.shape[-1] - 1)


def _draw_nucleus(probs: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """As :func:`_draw`, from the smallest set of tokens whose mass reaches ``top_p [B]``."""
    vocabulary = probs.shape[-1]
    ranked, token_ids = probs.topk(min(_SHORTLIST, vocabulary))
    cumulative = ranked.cumsum(-1)
    # A full sort of a large vocabulary costs more than the model: only where the mass is spread.
    if vocabulary > _SHORTLIST and bool((cumulative[:, -1] < top_p).any()):
        ranked, token_ids = probs.sort(-1, descending=True)
        cumulative = ranked.cumsum(-1)
    last = torch.searchsorted(cumulative, top_p[:, None]).clamp_max(ranked.shape[-1] - 1)
    point = uniform[:, None] * cumulative.gather(-1, last)
    rank = torch.searchsorted(cumulative, point, right=True)
    return token_ids.gather(-1, torch.minimum(rank, last))[:, 0]
