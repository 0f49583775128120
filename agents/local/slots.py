"""The tokens of each row of the key-value cache, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class SlotTable:
    """Token ids of ``R`` rows with ``capacity`` positions each.

    A row has ``known`` tokens. The keys and values of the first ``lengths`` tokens are cached. The
    row can decode if only its newest token is not cached.
    """

    def __init__(self, num_rows: int) -> None:
        self.tokens: Ints = np.zeros((num_rows, 0), dtype=np.int64)
        self.known: Ints = np.zeros(num_rows, dtype=np.int64)
        self.lengths: Ints = np.zeros(num_rows, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """Number of positions per row."""
        return int(self.tokens.shape[1])

    def grow(self, capacity: int) -> None:
        """Extend every row to ``capacity`` positions."""
        grown = np.zeros((len(self.known), capacity), dtype=np.int64)
        grown[:, : self.capacity] = self.tokens
        self.tokens = grown

    def fill(self, row: int, token_ids: Sequence[int], length: int) -> None:
        """Set the tokens of ``row``, of which the first ``length`` are already cached."""
        self.tokens[row, : len(token_ids)] = token_ids
        self.known[row] = len(token_ids)
        self.lengths[row] = length

    def append(self, token_ids: Sequence[int]) -> None:
        """Append one token to each of the first ``len(token_ids)`` rows."""
        count = len(token_ids)
        self.tokens[np.arange(count), self.known[:count]] = token_ids
        self.known[:count] += 1

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        for column in (self.tokens, self.known, self.lengths):
            column[[a, b]] = column[[b, a]]

    def drop(self) -> None:
        """Mark all keys and values as invalid. The tokens are kept."""
        self.lengths[:] = 0

    def common_prefix(self, token_ids: Ints) -> Ints:
        """Length of the common prefix of ``token_ids`` with each row, ``[R]``."""
        width = min(len(token_ids), self.capacity)
        if not width:
            return np.zeros_like(self.known)
        differs = self.tokens[:, :width] != token_ids[:width]
        first = np.where(differs.any(1), differs.argmax(1), width)
        return np.minimum(first, self.known)
