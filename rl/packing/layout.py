"""Layout of a packed row: segments one after the other, each after the prefixes that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.packing.prefixes import Integers, spans

KEYS_PER_TOKEN = 4
"""Maximum number of keys that attention holds at a time, per token of the row. Each segment after a
common prefix reads its own copy of the prefix's keys. A row with more keys is computed in
chunks."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring segments of equal length after the same prefix, computed as one batch."""

    count: int
    length: int
    prefix: tuple[int, ...]
    """Indices of the buckets whose tokens precede the segments, from the first token on. Each of
    these buckets has one segment."""
    num_keys: int
    """Number of keys that a segment reads: those of its prefix and its own."""

    @property
    def size(self) -> int:
        """Number of tokens in the bucket."""
        return self.count * self.length


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring buckets whose attention is computed together. Offsets are ``int32``."""

    buckets: range
    num_tokens: int
    query_starts: Tensor
    """Offset of each segment's queries among the queries of the chunk, then the number of
    queries."""
    key_starts: Tensor
    """Offset of each segment's keys, including its prefix's keys, then the total number of keys."""
    longest_query: int
    longest_key: int

    def map(self, change: Callable[[Tensor], Tensor]) -> Chunk:
        """A copy with ``change`` applied to every tensor."""
        starts = change(self.query_starts), change(self.key_starts)
        return replace(self, query_starts=starts[0], key_starts=starts[1])


@dataclass(frozen=True)
class Layout:
    """Segments of one packed row of T tokens."""

    buckets: tuple[Bucket, ...]
    """The buckets, in the order of the row."""
    chunks: tuple[Chunk, ...]
    """The chunks, in the order of the row. A row has one chunk, unless its segments read many
    keys."""
    positions: Tensor
    """``[1, T]``, the position of each token in its sequence."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Layout:
        """A copy with ``change`` applied to every tensor."""
        chunks = tuple(chunk.map(change) for chunk in self.chunks)
        return Layout(self.buckets, chunks, change(self.positions))

    @cached_property
    def sizes(self) -> list[int]:
        """Number of tokens in each bucket."""
        return [bucket.size for bucket in self.buckets]

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """For each bucket, a mask of the keys that its queries read: ``[length, num_keys]``.

        The mask is None for a bucket without a prefix, whose attention is causal.
        """
        return [self._mask(bucket) if bucket.prefix else None for bucket in self.buckets]

    def _mask(self, bucket: Bucket) -> Tensor:
        shape = bucket.length, bucket.num_keys
        whole = torch.ones(shape, dtype=torch.bool, device=self.positions.device)
        return whole.tril(bucket.num_keys - bucket.length)


class PackedRow(NamedTuple):
    """Token ids of a packed row, their layout, and the position of each sequence's tokens."""

    token_ids: Integers
    layout: Layout
    places: list[Integers]
    """For each sequence, the indices of its tokens in the row."""


@dataclass(slots=True)
class _Node:
    """Tokens ``start`` to ``end`` of a sequence, computed once for all that share the tokens."""

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
        sequences: token ids of each sequence, in the order of a ``prefixes.Part``.
        shared: number of tokens that each sequence shares with the previous sequence.
    """
    nodes, leaves = _tree([len(sequence) for sequence in sequences], shared)
    count = sum(node.end - node.start for node in nodes)
    buckets = _place(nodes, KEYS_PER_TOKEN * count)
    token_ids, positions = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    path: list[Integers] = []
    for node in nodes:
        at = np.arange(node.offset, node.offset + node.end - node.start)
        token_ids[at] = sequences[node.sequence][node.start : node.end]
        positions[at] = np.arange(node.start, node.end)
        path.append(at if node.parent < 0 else np.concatenate([path[node.parent], at]))
    chunks = tuple(_chunks(buckets, KEYS_PER_TOKEN * count))
    layout = Layout(buckets, chunks, torch.from_numpy(positions)[None])
    return PackedRow(token_ids, layout, [path[leaf] for leaf in leaves])


def placed(
    columns: Sequence[NDArray[np.integer[Any]] | None],
    places: Sequence[Integers],
    size: int,
) -> Tensor | None:
    """Numbers of sequences' first tokens, at the places of these tokens in a forward pass.

    Args:
        columns: for each sequence, numbers of its first tokens, or None.
        places: for each sequence, the indices of its tokens. Columns may have more tokens.
        size: number of positions.

    Returns:
        ``[size, ...]``, int16, with -1 at each position without a number. None without a column.
    """
    given = list(zip(columns, places, strict=True))
    shape = next((column.shape[1:] for column, _ in given if column is not None), None)
    if shape is None:
        return None
    found = np.full((size, *shape), -1, dtype=np.int16)
    for column, at in given:
        if column is not None:
            known = min(len(column), len(at))
            found[at[:known]] = column[:known]
    return torch.from_numpy(found)


def _tree(lengths: Sequence[int], shared: Integers) -> tuple[list[_Node], list[int]]:
    """The nodes of the tree of shared prefixes, parents first, and each sequence's last node."""
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


def _place(nodes: list[_Node], max_keys: int) -> tuple[Bucket, ...]:
    """The buckets of a tree, each with at most ``max_keys`` keys. Also sets the nodes' offsets."""
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
        num_keys = nodes[inside[0]].end
        for count in _shares(len(inside), max_keys // num_keys):
            buckets.append(Bucket(count, length, path[parent], num_keys))
        for number in inside:
            nodes[number].offset = offset
            offset += length
    return tuple(buckets)


def _shares(total: int, most: int) -> list[int]:
    """``total`` divided into shares of at most ``most``."""
    return [min(most, total - i) for i in range(0, total, most)]


def _chunks(buckets: Sequence[Bucket], max_keys: int) -> Iterator[Chunk]:
    """Chunks of neighbouring buckets that read at most ``max_keys`` keys together."""
    keys = [bucket.count * bucket.num_keys for bucket in buckets]
    first = total = 0
    for number, more in enumerate(keys):
        if total + more > max_keys:
            yield _chunk(buckets, range(first, number))
            first, total = number, 0
        total += more
    yield _chunk(buckets, range(first, len(buckets)))


def _chunk(buckets: Sequence[Bucket], span: range) -> Chunk:
    segments = [buckets[i] for i in span for _ in range(buckets[i].count)]
    queries, keys = [bucket.length for bucket in segments], [bucket.num_keys for bucket in segments]
    starts = _starts(queries), _starts(keys)
    return Chunk(span, sum(queries), *starts, max(queries), max(keys))


def _starts(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32)
