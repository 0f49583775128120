"""Puzzles from rows of data sets: code that the games' row readers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from envs.datasets import Row, load_rows, name_of
from envs.datasets.splits import Dataset, arrange
from envs.datasets.verl import is_verl, plain_row

T = TypeVar("T")


def load_puzzles(
    source: str, columns: str, read: Callable[[Row], T], key: Callable[[T], str]
) -> Dataset[T]:
    """The puzzles of a source of ``envs.datasets``.

    Args:
        source: a source of rows.
        columns: new and old names of columns.
        read: returns a row's puzzle. Entries of verl's ground truth appear as columns.
        key: returns a puzzle's key, whose hash selects the split.

    Raises:
        ValueError: a row is not a puzzle.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    rows = [_flat(row) for row in load_rows(source, columns=columns)]
    puzzles = [read(row) for row in rows]
    found = ((row, key(puzzle), puzzle) for row, puzzle in zip(rows, puzzles, strict=True))
    return arrange(found, name_of(source))


def find(row: Row, *names: str) -> Any:
    """The value of the first of these columns that a row has, or None.

    Ignores upper and lower case.
    """
    columns = {name.lower(): value for name, value in row.columns.items()}
    return next((columns[name] for name in names if columns.get(name) is not None), None)


def need(row: Row, *names: str) -> Any:
    """The value of the first of these columns that a row has.

    Raises:
        ValueError: the row has none of them; the message lists its columns and the fix.
    """
    found = find(row, *names)
    if found is None:
        has = ", ".join(name for name in row.columns if name != "split") or "none"
        raise ValueError(
            f"{row.where}: no column {' or '.join(names)}; it has {has}; name yours by "
            f'env.columns="{names[0]}=COLUMN"'
        )
    return found


def _flat(row: Row) -> Row:
    if not is_verl(row):
        return row
    plain = plain_row(row)
    gold = plain.columns.pop("ground_truth")
    inner = gold if isinstance(gold, Mapping) else {"answer": gold}
    kept = {name: value for name, value in row.columns.items() if name != "reward_model"}
    return Row(row.where, {**kept, **inner, **plain.columns})
