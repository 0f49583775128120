"""What top-k and top-p left of the vocabulary where each token was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Support:
    """The sampling support of n tokens; a token without entries was sampled from all.

    The sampler renormalises over it, so whatever is compared with the sampler must as well: a ratio
    of probabilities from two distributions of which one is cut is biased.
    """

    ids: Tensor
    """Token ids, those of one token after those of another."""
    starts: Tensor
    """``[n + 1]``: token i owns the ids from starts[i] to starts[i + 1]."""

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Sequence[Sequence[int]]]], num_tokens: int) -> Support:
        """The support of ``num_tokens``.

        Args:
            parts: of some spans of tokens, in order: the number of the first, and the ids of each.
            num_tokens: how many tokens there are.
        """
        counts = torch.zeros(num_tokens, dtype=torch.int64)
        for first, supports in parts:
            counts[first : first + len(supports)] = torch.tensor([len(ids) for ids in supports])
        ids = chain.from_iterable(ids for _, supports in parts for ids in supports)
        return cls(torch.tensor(list(ids), dtype=torch.int64), _starts(counts))

    def of_tokens(self, tokens: Tensor) -> Support:
        """That of the tokens with these numbers, ``[m]``."""
        counts = self.starts.diff()[tokens]
        starts = _starts(counts)
        # Where each id stands here: as far behind its token's first as it will stand there.
        shift = (self.starts[tokens] - starts[:-1]).repeat_interleave(counts)
        return Support(self.ids[shift + torch.arange(len(shift))], starts)

    def to(self, device: torch.device) -> Support:
        """The same, on another device."""
        return Support(self.ids.to(device), self.starts.to(device))

    def outside(self, first: int, stop: int, vocabulary: int) -> Tensor:
        """``[stop - first, vocabulary]`` booleans: what the tokens first to stop could not be."""
        starts = self.starts[first : stop + 1]
        counts = starts.diff()
        outside = (counts > 0)[:, None].repeat(1, vocabulary)
        rows = torch.arange(stop - first, device=starts.device).repeat_interleave(counts)
        outside[rows, self.ids[starts[0] : starts[-1]]] = False
        return outside


def _starts(counts: Tensor) -> Tensor:
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))
