"""Decides which sequences compute a prefix together, and divides them into packed rows.

Sequences that begin with the same tokens have the same hidden states there. For example, the
members of a group share their prompt, and a fork shares the tokens before it. Sorted by their
tokens, sequences are the leaves of a tree, in which neighbours share the longest prefixes. All
functions below use this order, so that a tree whose tokens fit into one row is never separated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

MIN_SHARED = 16
"""Minimum number of tokens to share. With fewer, the attention of an additional segment costs as
much as sharing saves."""
PAIRS_PER_TOKEN = 2048
"""Number of query-key pairs in attention that cost as much as all other layers do for one token."""


@dataclass(frozen=True, slots=True)
class Part:
    """The sequences of one packed row, in the order of their token ids."""

    sequences: list[int]
    shared: Integers
    """Number of tokens that each sequence shares with the previous one; 0 for the first."""


def split(
    sequences: Sequence[Integers],
    units: Sequence[list[int]],
    max_tokens: int,
    fill_tokens: int | None = None,
) -> list[Part]:
    """Split sequences into parts of at most ``max_tokens`` tokens, where shared tokens count once.

    A tree of shared prefixes that fits into a part is not split. A larger tree is split where its
    members share least. A unit that is longer than ``max_tokens`` is a separate part.

    Args:
        sequences: token ids.
        units: indices of the sequences to split, as lists. The sequences of a list must be in one
            part.
        max_tokens: maximum tokens of a part.
        fill_tokens: maximum tokens of a part that has several trees. If None, ``max_tokens``.
    """
    chosen = [i for unit in units for i in unit]
    keys = [sequences[i].tobytes() for i in chosen]
    order = sorted(range(len(chosen)), key=keys.__getitem__)
    rows = [sequences[chosen[i]] for i in order]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    shared = _worthwhile(lengths, _common(rows))
    rank = {chosen[i]: place for place, i in enumerate(order)}
    ranked = sorted(sorted(rank[i] for i in unit) for unit in units)
    parts = []
    limits = max_tokens, min(max_tokens, fill_tokens or max_tokens)
    for places in _filled(ranked, lengths, shared, limits):
        numbers = [chosen[order[place]] for place in places]
        parts.append(Part(numbers, np.array([0, *_links(shared, places)], dtype=np.int64)))
    return parts


def spans(shared: Integers, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Split sequences ``low`` to ``high`` between neighbours that share only ``depth`` tokens."""
    cuts = low + 1 + np.flatnonzero(shared[low + 1 : high] == depth)
    return list(pairwise([low, *cuts.tolist(), high]))


def _common(rows: Sequence[Integers]) -> Integers:
    """Length of the common prefix of each row and the previous row; 0 for the first."""
    shared = np.zeros(len(rows), dtype=np.int64)
    for i, (a, b) in enumerate(pairwise(rows), start=1):
        length = min(len(a), len(b))
        different = np.flatnonzero(a[:length] != b[:length])
        shared[i] = different[0] if len(different) else length
    return shared


def _worthwhile(lengths: Integers, shared: Integers) -> Integers:
    """``shared``, reduced where sharing would cost more than it saves.

    The tree is processed from its root down. If branches are faster without their common prefix,
    the prefix is shortened to the end of the prefix above it.
    """
    shared = shared.copy()
    todo = [(0, len(lengths), 0)]
    while todo:
        low, high, above = todo.pop()
        if high - low < 2:
            continue
        depth = int(shared[low + 1 : high].min())
        branches = spans(shared, low, high, depth)
        if depth > above and not _pays(lengths, branches, above, depth):
            inner = shared[low + 1 : high]
            inner[inner == depth] = depth = above
        todo.extend((a, b, depth) for a, b in branches)
    return shared


def _pays(lengths: Integers, branches: list[tuple[int, int]], above: int, depth: int) -> bool:
    """Whether branches should compute the tokens from ``above`` to ``depth`` together.

    A segment without a prefix computes only the pairs of its causal triangle. A segment after a
    prefix computes the whole rectangle, so that long branches after a short prefix are slower.
    """
    if depth - above < MIN_SHARED:
        return False
    if above:
        return True
    longest = np.array([lengths[low:high].max() for low, high in branches])
    rectangles = (longest - depth) * longest
    pairs = (rectangles - longest**2 // 2).sum() + depth**2 // 2
    return bool((len(branches) - 1) * depth * PAIRS_PER_TOKEN > pairs)


def _links(shared: Integers, places: Sequence[int]) -> Iterator[int]:
    """Number of tokens that each sequence, except the first, shares with the previous one."""
    for a, b in pairwise(places):
        yield int(shared[a + 1 : b + 1].min())


def _filled(
    units: list[list[int]], lengths: Integers, shared: Integers, limits: tuple[int, int]
) -> Iterator[list[int]]:
    """Parts of neighbouring units.

    ``limits`` are the maximum tokens of a part with one tree, and of a part with several trees.
    """
    max_tokens, fill_tokens = limits
    own = np.array([lengths[unit].sum() - sum(_links(shared, unit)) for unit in units])
    links = np.array([0, *_links(shared, [unit[0] for unit in units])], dtype=np.int64)
    part: list[int] = []
    total = 0
    for low, high in _trees(own, links, max_tokens):
        size = int(own[low:high].sum() - links[low + 1 : high].sum())
        # Neighbours that share a prefix belong to one tree, which was too large for one part.
        limit = max_tokens if links[low] else fill_tokens
        if part and total + size - links[low] > limit:
            yield sorted(part)
            part, total = [], 0
        total += size - int(links[low]) if part else size
        part.extend(place for unit in units[low:high] for place in unit)
    if part:
        yield sorted(part)


def _trees(own: Integers, links: Integers, max_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of units: the largest trees of at most ``max_tokens`` tokens, or single units."""
    todo = [(0, len(own))] if len(own) else []
    while todo:
        low, high = todo.pop()
        inner = links[low + 1 : high]
        if high - low == 1 or own[low:high].sum() - inner.sum() <= max_tokens:
            yield low, high
        else:
            todo.extend(reversed(spans(links, low, high, int(inner.min()))))
