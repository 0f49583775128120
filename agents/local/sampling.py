"""Samples tokens from logits: temperature, top-k, top-p, and the random numbers of each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.completion import SamplingParams

_BLOCK = 64
_SHORTLIST = 256


class Sampled(NamedTuple):
    """One sampled token for each of ``B`` rows."""

    token_ids: Tensor
    logprobs: Tensor
    """``[B]`` fp32, log-probability in the sampling distribution, which includes the temperature
    and is normalised over the support that top-k and top-p kept."""
    supports: list[list[int]]
    """Token ids that top-k and top-p kept, one list per row. A list is empty if they kept all
    tokens, or if the request does not need the support."""


def uniforms(seed: int) -> Iterator[float]:
    """Endless random numbers in [0, 1) that depend on ``seed`` alone.

    The numbers come from Philox4x32-10 with the seed as its key (Salmon et al. 2011, section 3).
    Streams of different keys are independent, so a request samples the same completion in every
    batch.
    """
    generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
    while True:
        yield from generator.random(_BLOCK, dtype=np.float32).tolist()


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    uniform: Sequence[float],
) -> Sampled:
    """Sample one token per row by inverting the cumulative distribution at ``uniform``.

    Args:
        logits: ``[B, V]``, fp32.
        params: sampling parameters of each row. Temperature 0 selects the likeliest token, with its
            log-probability at temperature 1.
        uniform: numbers in [0, 1), one per row.
    """
    device = logits.device
    if any(p.temperature != 1.0 for p in params):
        divisor = torch.tensor([p.temperature or 1.0 for p in params], device=device)
        scaled = logits / divisor[:, None]
    else:
        scaled = logits
    logprobs = scaled.log_softmax(-1)
    supports: list[list[int]] = [[] for _ in params]
    greedy = [p.temperature == 0.0 for p in params]
    if all(greedy):
        token_ids = logits.argmax(-1)
        return Sampled(token_ids, _of(logprobs, token_ids), supports)
    u = torch.tensor(uniform, device=device)
    token_ids = _draw(logprobs.exp(), u)
    if any(greedy):
        chosen = torch.tensor(greedy, device=device)
        token_ids = torch.where(chosen, logits.argmax(-1), token_ids)
    cut = [i for i, p in enumerate(params) if p.truncates]
    if not cut:
        return Sampled(token_ids, _of(logprobs, token_ids), supports)
    masses = torch.ones(len(params), dtype=logprobs.dtype, device=device)
    probs = logprobs[torch.tensor(cut, device=device)].exp()
    for places, left in _cut(probs, [params[i] for i in cut]):
        numbers = [cut[place] for place in places]
        rows = torch.tensor(numbers, device=device)
        token_ids[rows], masses[rows] = left.draw(u[rows]), left.mass
        for place, i in enumerate(numbers):
            if params[i].with_support:
                supports[i] = left.support(place)
    drawn = _of(logprobs, token_ids) - masses.log()
    # The mass is a sum of rounded numbers: where one token is left it may be below that token's.
    return Sampled(token_ids, drawn.clamp_max(0.0), supports)


def _of(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    return logprobs.gather(-1, token_ids[:, None])[:, 0]


def _running_sums(probs: Tensor) -> Tensor:
    """Cumulative sums of each row.

    A GPU's sums may differ between two runs. If torch must be deterministic, the CPU adds.
    """
    if probs.is_cuda and torch.are_deterministic_algorithms_enabled():
        return probs.cpu().cumsum(-1).to(probs.device)
    return probs.cumsum(-1)


def _draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Sample token ids ``[B]`` from ``probs [B, V]``. A token with probability 0 is never drawn."""
    cumulative = _running_sums(probs)
    # Scaled by the total, which rounding leaves near 1: u < 1 then stays below the last entry.
    point = uniform[:, None] * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, point, right=True)
    return found[:, 0].clamp_max(probs.shape[-1] - 1)


class _Left(NamedTuple):
    """The tokens of some rows that top-k and top-p keep, likeliest first."""

    token_ids: Tensor
    """``[B, W]``, the ids of the tokens."""
    cumulative: Tensor
    """``[B, W]``, the total probability of each token and all tokens before it."""
    last: Tensor
    """``[B, 1]``, the position of the last token that is kept."""

    @property
    def mass(self) -> Tensor:
        """``[B]``, the total probability of all tokens that are kept."""
        return self.cumulative.gather(-1, self.last)[:, 0]

    def draw(self, uniform: Tensor) -> Tensor:
        """Draw a token id for each row, ``[B]``."""
        point = (uniform * self.mass)[:, None]
        rank = torch.searchsorted(self.cumulative, point, right=True)
        return self.token_ids.gather(-1, torch.minimum(rank, self.last))[:, 0]

    def support(self, row: int) -> list[int]:
        """The token ids that are kept in a row, in ascending order."""
        return sorted(self.token_ids[row, : int(self.last[row]) + 1].tolist())


def _cut(probs: Tensor, params: Sequence[SamplingParams]) -> list[tuple[list[int], _Left]]:
    """Apply top-k and top-p to ``probs [B, V]``, by groups of rows.

    First, ``top_k`` tokens are kept. Of these, the smallest set that holds at least the fraction
    ``top_p`` of their probability is kept (the nucleus of Holtzman et al. 2020, section 3.1).
    """
    vocabulary = probs.shape[-1]
    ks = [min(p.top_k or vocabulary, vocabulary) for p in params]
    limits = torch.tensor(ks, device=probs.device)
    top_p = torch.tensor([p.top_p for p in params], dtype=probs.dtype, device=probs.device)
    limited = limits < vocabulary
    ranked, token_ids = probs.topk(min(_SHORTLIST, vocabulary))
    cumulative = _running_sums(ranked)
    # A full sort of a large vocabulary costs more than the model: only where the mass is spread.
    # Each row's own way, whatever else is in the batch: equals are ordered differently by the two.
    enough = torch.where(limited, limits <= _SHORTLIST, cumulative[:, -1] >= top_p)
    enough |= vocabulary <= _SHORTLIST
    found = []
    for short, which in ((True, enough), (False, ~enough)):
        rows = which.nonzero()[:, 0]
        if not len(rows):
            continue
        if short:
            best, mass = token_ids[rows], cumulative[rows]
        else:
            ranked, best = probs[rows].sort(dim=-1, descending=True, stable=True)
            mass = _running_sums(ranked)
        most = limits[rows].clamp_max(best.shape[-1])[:, None] - 1
        total = torch.where(limited[rows], mass.gather(-1, most)[:, 0], 1.0)
        last = torch.searchsorted(mass, (top_p[rows] * total)[:, None])
        found.append((rows.tolist(), _Left(best, mass, torch.minimum(last, most))))
    return found
