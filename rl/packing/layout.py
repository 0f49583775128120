"""Layout of a packed row: segments one after the other, each after the prefixes that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl.packing.prefixes import Integers, spans


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring segments of equal length after the same prefix, computed as one batch."""

    count: int
    length: int
    prefix: tuple[int, ...]
    """The buckets, each of one segment, whose tokens come before; from the first token on."""

    @property
    def size(self) -> int:
        """Number of tokens in the bucket."""
        return self.count * self.length


@dataclass(frozen=True)
class Layout:
    """Segments of one packed row of T tokens."""

    buckets: tuple[Bucket, ...]
    """The buckets, in the order of the row."""
    positions: Tensor
    """``[1, T]``, the position of each token in its sequence."""

    def to(self, device: torch.device) -> Layout:
        """A copy on another device."""
        return Layout(self.buckets, self.positions.to(device))

    @cached_property
    def sizes(self) -> list[int]:
        """Number of tokens in each bucket."""
        return [bucket.size for bucket in self.buckets]

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """For each bucket, which keys its queries read: ``[length, prefix + length]``.

        None stands for a bucket without a prefix, which is causal.
        """
        return [self._mask(bucket) if bucket.prefix else None for bucket in self.buckets]

    def _mask(self, bucket: Bucket) -> Tensor:
        before = sum(self.sizes[i] for i in bucket.prefix)
        shape = bucket.length, before + bucket.length
        return torch.ones(shape, dtype=torch.bool, device=self.positions.device).tril(before)

    @cached_property
    def lengths(self) -> Lengths:
        """The segments in the form that variable-length attention reads."""
        starts = np.cumsum([0, *self.sizes])
        queries, keys = [], []
        for number, bucket in enumerate(self.buckets):
            prefix = [np.arange(starts[i], starts[i + 1]) for i in bucket.prefix]
            for own in np.arange(starts[number], starts[number + 1]).reshape(bucket.count, -1):
                queries.append(len(own))
                keys.append(np.concatenate([*prefix, own]))
        counts = [len(key) for key in keys]
        device = self.positions.device
        return Lengths(
            keys=torch.from_numpy(np.concatenate(keys)).to(device),
            query_starts=_starts(queries).to(device),
            key_starts=_starts(counts).to(device),
            longest_query=max(queries),
            longest_key=max(counts),
        )


class Lengths(NamedTuple):
    """Segments with the keys of their prefixes and their own; offsets are ``int32``."""

    keys: Tensor
    """The token of each key, segment by segment."""
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int


class PackedRow(NamedTuple):
    """Token ids, their layout, and where each token of the sequences is."""

    token_ids: Integers
    layout: Layout
    places: list[Integers]
    """The position of each sequence's tokens in the row, as an array for each sequence."""


@dataclass(slots=True)
class _Node:
    """Tokens ``start`` to ``end`` of a sequence, computed once for all that share them."""

    sequence: int
    start: int
    end: int
    parent: int
    """Index of the parent node, or -1 if the node begins its sequences."""
    offset: int = 0
    """Index of the first token in the row."""


def pack(sequences: Sequence[Integers], shared: Integers) -> PackedRow:
    """Lay sequences out as one packed row.

    Args:
        sequences: token ids, in the order of a part (``prefixes.Part``).
        shared: tokens that each sequence shares with the one before it.
    """
    nodes, leaves = _tree([len(sequence) for sequence in sequences], shared)
    buckets = _place(nodes)
    count = sum(bucket.size for bucket in buckets)
    token_ids, positions = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    path: list[Integers] = []
    for node in nodes:
        at = np.arange(node.offset, node.offset + node.end - node.start)
        token_ids[at] = sequences[node.sequence][node.start : node.end]
        positions[at] = np.arange(node.start, node.end)
        path.append(at if node.parent < 0 else np.concatenate([path[node.parent], at]))
    layout = Layout(buckets, torch.from_numpy(positions)[None])
    return PackedRow(token_ids, layout, [path[leaf] for leaf in leaves])


def _tree(lengths: Sequence[int], shared: Integers) -> tuple[list[_Node], list[int]]:
    """The tree of shared prefixes, parents first, and the last node of each sequence."""
    nodes: list[_Node] = []
    leaves = [-1] * len(lengths)
    todo = [(0, len(lengths), 0, -1)]
    while todo:
        low, high, start, node = todo.pop()
        end = lengths[low] if high - low == 1 else int(shared[low + 1 : high].min())
        if end > start:
            nodes.append(_Node(low, start, end, node))
            node = len(nodes) - 1
        if high - low == 1:
            leaves[low] = node
        else:
            todo.extend((a, b, end, node) for a, b in reversed(spans(shared, low, high, end)))
    return nodes, leaves


def _place(nodes: list[_Node]) -> tuple[Bucket, ...]:
    """The buckets of a tree. Also sets the nodes' offsets."""
    parents = {node.parent for node in nodes}
    members: dict[tuple[int, ...], list[int]] = {}
    for number, node in enumerate(nodes):
        # A prefix is a bucket of its own; branches of equal length that end are one bucket.
        alone = (number,) if number in parents else ()
        members.setdefault((node.parent, node.end - node.start, *alone), []).append(number)
    buckets: list[Bucket] = []
    path: dict[int, tuple[int, ...]] = {-1: ()}
    offset = 0
    for (parent, length, *_), inside in members.items():
        path.update((number, (*path[parent], len(buckets))) for number in inside)
        buckets.append(Bucket(len(inside), length, path[parent]))
        for number in inside:
            nodes[number].offset = offset
            offset += length
    return tuple(buckets)


def _starts(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32)
