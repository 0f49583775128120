"""Which tokens each row of the key-value cache holds: plain arrays beside the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class SlotTable:
    """Token ids per row. ``R`` rows of ``capacity`` positions, which grows by doubling.

    A row holds ``known`` tokens, of which the first ``lengths`` have their keys and values in the
    cache. It can decode when exactly one token, the newest, has not.
    """

    def __init__(self, num_rows: int) -> None:
        self.tokens: Ints = np.zeros((num_rows, 0), dtype=np.int64)
        self.known: Ints = np.zeros(num_rows, dtype=np.int64)
        self.lengths: Ints = np.zeros(num_rows, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """Positions per row."""
        return int(self.tokens.shape[1])

    def grow(self, capacity: int) -> None:
        """Make every row ``capacity`` positions long."""
        grown = np.zeros((len(self.known), capacity), dtype=np.int64)
        grown[:, : self.capacity] = self.tokens
        self.tokens = grown

    def fill(self, row: int, token_ids: Sequence[int], length: int) -> None:
        """Let ``row`` hold ``token_ids``, the first ``length`` of them in the cache already."""
        self.tokens[row, : len(token_ids)] = token_ids
        self.known[row] = len(token_ids)
        self.lengths[row] = length

    def append(self, token_ids: Sequence[int]) -> None:
        """Append one token to each of the first rows, as many as there are tokens."""
        count = len(token_ids)
        self.tokens[np.arange(count), self.known[:count]] = token_ids
        self.known[:count] += 1

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        for column in (self.tokens, self.known, self.lengths):
            column[[a, b]] = column[[b, a]]

    def drop(self) -> None:
        """Forget every key and value; the tokens stay."""
        self.lengths[:] = 0

    def common_prefix(self, token_ids: Ints) -> Ints:
        """How many leading tokens each row shares with ``token_ids``, ``[R]``."""
        width = min(len(token_ids), self.capacity)
        if not width:
            return np.zeros_like(self.known)
        differs = self.tokens[:, :width] != token_ids[:width]
        first = np.where(differs.any(1), differs.argmax(1), width)
        return np.minimum(first, self.known)
