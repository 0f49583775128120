"""Prefixes that several rows share, which attention reads once for all of them."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.local.forward.batch import Ints
from agents.local.forward.cache import KeyValueCache

_SLACK = 8
"""Number of positions by which a shared prefix may be too short for a new row before a longer
prefix is stored."""
_STEP = 32
"""Stored prefixes grow by multiples of this number of positions."""
_SHARE = 4
"""Prefixes have at most one position for this number of the rows' positions."""
_WORTH_BYTES = 1_000_000
"""Cost of reading shared prefixes, in bytes of a layer's keys and values that could be read in the
same time. Two parts of the attention, and their combination, have 13 small operations more."""
_WORTH_ROW_BYTES = 10_000
"""The same cost for each row."""


class SharedReads(NamedTuple):
    """How rows read the prefixes that they share: ``S`` prefixes, at most ``M`` rows for each."""

    first: int
    """Number of positions that every row shares. The rows read the others by themselves."""
    is_even: bool
    """Whether all rows share this number of positions."""
    lengths: Tensor
    """``[D, 1]``: number of positions of each row that come from its prefix."""
    keys: list[Tensor]
    """By layer, ``[S * heads, T, head_dim]``."""
    values: list[Tensor]
    """By layer, ``[S * heads, T, head_dim]``."""
    members: Tensor
    """``[S * heads * M]``: among the queries ``[D * heads]``, those of each prefix's rows. Padded
    with the first query."""
    num_members: int
    """``M``."""
    places: Tensor
    """``[D * heads]``: the place of each query in ``members``."""
    mask: Tensor | None
    """``[S, 1, M, 1, T]``, added to the scores. None if no position is masked."""


class SharedPrefixes:
    """Prefixes that several rows begin with, stored once so that one matrix product reads them.

    The rows of a group begin with the same prompt. If each row reads its own copy, attention
    reads the prompt once for each row. Attention over the prefix and over the rest are instead
    computed apart and combined by their log-sum-exps (Juravsky et al. 2024, section 3.1). Every
    row still has a copy of its own, so that a prefix can be dropped at any time.

    Args:
        rows: the cache of the rows.
        max_positions: maximum number of positions of rows and prefixes together.
    """

    def __init__(self, rows: KeyValueCache, max_positions: int = sys.maxsize) -> None:
        self._rows = rows
        self._max_positions = max_positions
        self.drop()

    def drop(self) -> None:
        """Forget all prefixes, and free their memory."""
        self._store = self._rows.empty()
        self._ids: Ints = np.full(self._rows.num_rows, -1)
        """The prefix of each row, or -1."""
        self._lengths: Ints = np.zeros(self._rows.num_rows, dtype=np.int64)
        """Number of positions that each row shares with its prefix."""
        self._plans: dict[int, SharedReads | None] = {}

    def resize(self, num_rows: int, capacity: int) -> None:
        """Note that the rows' cache is about to be resized."""
        if self._store.num_rows * self._store.capacity > self._room(num_rows * capacity):
            self.drop()
        ids, lengths = self._ids[:num_rows], self._lengths[:num_rows].clip(max=capacity)
        added = num_rows - len(ids)
        self._ids = np.concatenate((ids, np.full(added, -1)))
        self._lengths = np.concatenate((lengths, np.zeros(added, dtype=np.int64)))
        self._plans.clear()

    def swap(self, a: int, b: int) -> None:
        """Follow the exchange of two rows."""
        for column in (self._ids, self._lengths):
            column[[a, b]] = column[[b, a]]
        self._plans.clear()

    def share(self, source: int, target: int, length: int) -> None:
        """Note that the row ``target`` now begins with ``length`` positions of row ``source``."""
        self._plans.clear()
        self._ids[target], self._lengths[target] = -1, 0
        if self._lengths[source] + _SLACK <= length and self._store_prefix(source, length):
            self._lengths[source] = length
        self._ids[target] = self._ids[source]
        self._lengths[target] = min(length, self._lengths[source])

    def shorten(self, lengths: Ints) -> None:
        """Note that the first rows are about to be overwritten from position ``lengths`` on."""
        shared = self._lengths[: len(lengths)]
        if (lengths < shared).any():
            np.minimum(shared, lengths, out=shared)
            self._ids[self._lengths == 0] = -1
            self._plans.clear()

    def reads(self, count: int) -> SharedReads | None:
        """How the first ``count`` rows read their prefixes, or None if this is not faster."""
        if count not in self._plans:
            self._plans[count] = self._plan(count)
        return self._plans[count]

    def _room(self, positions: int) -> int:
        """Maximum number of positions of all prefixes, beside ``positions`` of the rows."""
        return min(positions // _SHARE, self._max_positions - positions)

    def _store_prefix(self, row: int, length: int) -> bool:
        """Store the first positions of a row as its prefix. Returns False if there is no room."""
        # The fused kernel of other types returns no log-sum-exps.
        if self._rows.dtype != torch.float32:
            return False
        # A former prefix of this row alone is replaced.
        used = np.delete(self._ids, row)
        free = np.setdiff1d(np.arange(len(used) + 1), used)
        number, store = int(free[0]), self._store
        size = max(store.num_rows, number + 1), max(store.capacity, -(-length // _STEP) * _STEP)
        if size[0] * size[1] > self._room(self._rows.num_rows * self._rows.capacity):
            return False
        if size != (store.num_rows, store.capacity):
            store.resize(*size)
        store.copy(self._rows, row, number, length)
        self._ids[row] = number
        return True

    def _plan(self, count: int) -> SharedReads | None:
        ids, lengths = self._ids[:count], self._lengths[:count]
        first = int(lengths.min())
        if not first:
            return None
        # A slice of the stored prefixes is no copy, although it may have prefixes of other rows.
        low, high, longest = int(ids.min()), int(ids.max()) + 1, int(lengths.max())
        counts = np.bincount(ids - low)
        num_prefixes, most = high - low, int(counts.max())
        # A prefix costs as much as half of its rows' own copies: the product is more efficient.
        saved = count * first - num_prefixes * longest * max(1.0, most / 2)
        if saved * self._rows.position_bytes < _WORTH_BYTES + count * _WORTH_ROW_BYTES:
            return None
        order = np.argsort(ids, kind="stable")
        ranks = np.empty(count, dtype=np.int64)
        ranks[order] = np.arange(count) - (counts.cumsum() - counts)[ids[order] - low]
        heads = np.arange(self._rows.num_heads)
        places = ((ids - low)[:, None] * len(heads) + heads) * most + ranks[:, None]
        members = np.zeros((num_prefixes, len(heads), most), dtype=np.int64)
        members.reshape(-1)[places] = np.arange(places.size).reshape(places.shape)
        device = self._rows.device
        return SharedReads(
            first,
            first == longest,
            torch.from_numpy(lengths[:, None].copy()).to(device),
            [layer[low:high, :, :longest].flatten(0, 1) for layer in self._store.keys],
            [layer[low:high, :, :longest].flatten(0, 1) for layer in self._store.values],
            torch.from_numpy(members.reshape(-1)).to(device),
            most,
            torch.from_numpy(places.reshape(-1)).to(device),
            self._mask(lengths[members[:, 0] // len(heads)], longest),
        )

    def _mask(self, lengths: Ints, longest: int) -> Tensor | None:
        """The mask of prefixes whose rows ``[S, M]`` read ``lengths`` positions of them."""
        if lengths.min() == longest:
            return None
        hidden = np.arange(longest) >= lengths[:, None, :, None, None]
        mask = np.where(hidden, -np.inf, 0.0).astype(np.float32)
        return torch.from_numpy(mask).to(self._rows.device)
