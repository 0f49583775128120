"""Questions with reference answers from rows: ``question``, and ``reference`` or ``answer``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from envs.datasets import Row, load_rows, name_of
from envs.datasets.splits import Dataset, arrange
from envs.reference.task import ReferenceTask

REFERENCES = ("reference", "reference_answer", "answer")
"""Columns that may hold the reference. The first that a row has is used."""


@cache
def load_questions(source: str, columns: str = "") -> Dataset[ReferenceTask]:
    """The questions of a file, folder or hub id; see ``envs.datasets``.

    Each source is read once per process.

    Raises:
        ValueError: a column is missing, or a row is malformed.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return questions_from(load_rows(source, columns=columns), name_of(source))


def questions_from(rows: Iterable[Row], source: str = "rows") -> Dataset[ReferenceTask]:
    """The questions of rows that are already loaded; see :func:`load_questions`.

    Raises:
        ValueError: as :func:`load_questions`.
    """
    found = []
    for row in rows:
        if "question" not in row.columns:
            raise ValueError(
                f"{row.where}: no column 'question'; it has {', '.join(row.columns) or 'none'}; "
                f'name yours by env.columns="question=COLUMN reference=COLUMN"'
            )
        task = ReferenceTask(_text(row, "question"), _text(row, _reference_column(row)))
        found.append((row, task.question, task))
    return arrange(found, source)


def _reference_column(row: Row) -> str:
    for column in REFERENCES:
        if column in row.columns:
            return column
    raise ValueError(
        f"{row.where}: no column with a reference answer ({', '.join(REFERENCES)}); it has "
        f"{', '.join(row.columns)}; name yours by "
        f'env.columns="question=COLUMN reference=COLUMN"'
    )


def _text(row: Row, column: str) -> str:
    value = row.columns[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{row.where}, column {column}: expected a text, got {value!r:.40}")
    return value.strip()
