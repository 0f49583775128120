"""Divides sequences into forward passes, each of padded rows or of one packed row.

Sequences of one unit, such as the answers that a loss compares, are in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rl.packing.layout import PackedRow, pack
from rl.packing.prefixes import Integers, split


def parts_of(
    units: Sequence[Sequence[Sequence[int]]], max_tokens: int, fill_tokens: int
) -> list[list[int]]:
    """Divide units into forward passes of at most ``max_tokens`` tokens.

    Args:
        units: token ids of the sequences of each unit.
        max_tokens: maximum tokens of a pass. Padding counts, and in a packed row a shared prefix
            counts once. A larger unit is a pass of its own.
        fill_tokens: tokens up to which units that share no prefix fill a packed row, or 0 for
            padded rows.

    Returns:
        The indices of the units of each pass.
    """
    if not fill_tokens:
        widths = [max(map(len, unit)) for unit in units]
        return list(padded_parts(widths, max_tokens, [len(unit) for unit in units]))
    sequences = [np.asarray(ids, dtype=np.int64) for unit in units for ids in unit]
    owners = [number for number, unit in enumerate(units) for _ in unit]
    members: list[list[int]] = [[] for _ in units]
    for sequence, owner in enumerate(owners):
        members[owner].append(sequence)
    parts = split(sequences, members, max_tokens, fill_tokens)
    return [list(dict.fromkeys(owners[i] for i in part.sequences)) for part in parts]


def padded_parts(
    widths: Sequence[int], max_tokens: int, sizes: Sequence[int]
) -> Iterator[list[int]]:
    """Divide units into parts of at most ``max_tokens`` padded tokens, longest units first.

    Args:
        widths: number of tokens in each unit's longest row.
        max_tokens: maximum number of tokens. A larger unit is a part by itself.
        sizes: number of rows of each unit.
    """
    part: list[int] = []
    for unit in sorted(range(len(widths)), key=lambda i: -widths[i]):
        num_rows = sum(sizes[i] for i in part) + sizes[unit]
        if part and num_rows * widths[part[0]] > max_tokens:
            yield part
            part = []
        part.append(unit)
    if part:
        yield part


def one_row(sequences: Sequence[Integers]) -> PackedRow:
    """Pack all sequences into one row. ``places`` are in the order of the sequences."""
    (part,) = split(sequences, [list(range(len(sequences)))], sum(map(len, sequences)))
    row = pack([sequences[i] for i in part.sequences], part.shared)
    places = dict(zip(part.sequences, row.places, strict=True))
    return row._replace(places=[places[i] for i in range(len(sequences))])


def cut_rows(
    units: Iterable[list[int]], rows: list[Integers], max_tokens: int
) -> Iterator[list[int]]:
    """Groups of neighbouring ``units``; each group has at most ``max_tokens`` padded tokens."""
    part: list[int] = []
    for unit in units:
        if part and (len(part) + len(unit)) * len(rows[part[0]]) > max_tokens:
            yield part
            part = []
        part.extend(unit)
    if part:
        yield part
