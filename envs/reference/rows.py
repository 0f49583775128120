"""Questions with reference answers from rows: ``question``, and ``reference`` or ``answer``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from envs.datasets import Row, load_rows, of_split
from envs.reference.task import ReferenceTask

REFERENCES = ("reference", "reference_answer", "answer")
"""Columns that may hold the reference; the first that a row has counts."""


@cache
def row_tasks(source: str | Path, split: str) -> list[ReferenceTask]:
    """The questions of one split of a file, folder or hub id; see ``envs.datasets`` for both.

    A source is read once per process: every episode makes an environment.

    Raises:
        ValueError: a column is missing, a row is broken, or none is in the split.
        DatasetUnavailable: the hub does not give it.
    """
    return tasks_from_rows(load_rows(source, ("question",)), split, str(source))


def tasks_from_rows(rows: Iterable[Row], split: str, source: str = "rows") -> list[ReferenceTask]:
    """The questions of those rows that belong to ``split``.

    Raises:
        ValueError: as :func:`row_tasks`.
    """
    found = []
    for row in rows:
        task = ReferenceTask(_text(row, "question"), _text(row, _reference_column(row)))
        found.append((row, task.question, task))
    return of_split(found, split, source)


def _reference_column(row: Row) -> str:
    for column in REFERENCES:
        if column in row.columns:
            return column
    raise ValueError(
        f"{row.where}: no column with a reference answer ({', '.join(REFERENCES)}); it has "
        f"{', '.join(row.columns)}"
    )


def _text(row: Row, column: str) -> str:
    value = row.columns[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{row.where}, column {column}: expected a text, got {value!r:.40}")
    return value.strip()
