"""Questions with reference answers from rows: ``question``, and ``reference`` or ``answer``."""

from __future__ import annotations

from collections.abc import Iterable

from envs.datasets import Row, is_empty, kept_while_unchanged, load_rows, name_of
from envs.datasets.splits import Dataset, arrange
from envs.reference.task import ReferenceTask

REFERENCES = ("reference", "reference_answer", "answer")
"""Columns that may hold the reference. The first that is not empty is used."""


@kept_while_unchanged
def load_questions(source: str, columns: str = "") -> Dataset[ReferenceTask]:
    """The questions of a file, folder or hub id; see ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a column is missing, or a row is malformed.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return questions_from(load_rows(source, columns=columns), name_of(source))


def questions_from(rows: Iterable[Row], source: str = "rows") -> Dataset[ReferenceTask]:
    """The questions of rows that are already loaded; see :func:`load_questions`.

    Rows without a reference are left out.

    Raises:
        ValueError: as :func:`load_questions`.
    """
    found, without = list[tuple[Row, str, ReferenceTask]](), list[tuple[Row, str, str]]()
    for row in rows:
        if "question" not in row.columns:
            raise ValueError(
                f"{row.where}: no column 'question'; it has {', '.join(row.columns) or 'none'}; "
                f'name yours by env.columns="question=COLUMN reference=COLUMN"'
            )
        question, column = _text(row, "question"), _reference_column(row)
        if is_empty(row.columns[column]):
            reason = f"{row.where}, column {column}: expected a text, got {row.columns[column]!r}"
            without.append((row, question, reason))
        else:
            found.append((row, question, ReferenceTask(question, _text(row, column))))
    return arrange(found, source, len(found) + len(without), without)


def _reference_column(row: Row) -> str:
    columns = [column for column in REFERENCES if column in row.columns]
    if columns:
        return next((column for column in columns if not is_empty(row.columns[column])), columns[0])
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
