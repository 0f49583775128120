"""The tokens of each row of the key-value cache, as plain arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agents.local.forward import Ints

_STEP = 32
"""Rows grow by multiples of this number of positions."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the key-value cache."""

    max_rows: int
    max_positions: int = sys.maxsize
    """Maximum number of positions of all rows together."""
    is_freed: bool = False
    """Whether the cache's memory is freed when no episode needs the cache."""

    @property
    def is_bounded(self) -> bool:
        """Whether there is a maximum number of positions."""
        return self.max_positions < sys.maxsize

    def num_rows(self, capacity: int) -> int:
        """Number of rows of ``capacity`` positions."""
        return min(self.max_rows, self.max_positions // capacity)


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

    def resize(self, num_rows: int, capacity: int) -> list[int]:
        """Change the number of rows, at the table's end, and the number of positions per row.

        Returns:
            The rows that had more tokens than ``capacity``, which are now empty.
        """
        kept, width = min(num_rows, len(self.known)), min(capacity, self.capacity)
        former, self.tokens = self.tokens, np.zeros((num_rows, capacity), dtype=np.int64)
        self.tokens[:kept, :width] = former[:kept, :width]
        added = np.zeros(num_rows - kept, dtype=np.int64)
        self.known = np.concatenate((self.known[:kept], added))
        self.lengths = np.concatenate((self.lengths[:kept], added))
        emptied: list[int] = np.flatnonzero(self.known > capacity).tolist()
        self.known[emptied] = self.lengths[emptied] = 0
        return emptied

    def fill(self, row: int, token_ids: Sequence[int], length: int) -> None:
        """Set the tokens of ``row``, of which the first ``length`` are already cached."""
        self.tokens[row, : len(token_ids)] = token_ids
        self.known[row] = len(token_ids)
        self.lengths[row] = length

    def end(self, num_decode: int, num_chunks: int, width: int) -> int:
        """Number of positions per row that the next step, and the tokens that it samples, need.

        The first ``num_decode`` rows decode. The next ``num_chunks`` prefill ``width`` tokens each.
        """
        starts = self.lengths[: num_decode + num_chunks]
        return int(max(starts.max() + 2, starts[num_decode:].max(initial=0) + width + 1))

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


def grown(capacity: int, length: int) -> int:
    """The capacity of rows that must have ``length`` positions and had ``capacity``.

    Rows grow by quarters, not by doubling: attention reads rows with gaps between them up to twice
    as slowly as adjacent rows.
    """
    while capacity < length:
        capacity += max(1, capacity // 4 // _STEP) * _STEP
    return capacity
