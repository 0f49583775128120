"""Options of environments whose tasks may be rows of a data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envs.datasets.rows import parse_columns
from envs.datasets.splits import ALL, Dataset
from envs.options import EnvOptions

GENERATED = "generated"


@dataclass(frozen=True, kw_only=True)
class RowOptions(EnvOptions):
    """Options of an environment whose tasks may be rows of a data set.

    In Python, ``tasks`` may also be the rows themselves: a list of dicts, which is stored as JSON.
    """

    tasks: str = GENERATED
    """ "generated" for generated tasks, or rows: a path to .jsonl, .jsonl.gz, .parquet or .json, a
    folder of them, or a Hugging Face hub id."""
    columns: str = ""
    """Columns to read from rows in a layout of your own: "question=problem answer=solution"."""

    def __post_init__(self) -> None:
        given: object = self.tasks
        if not isinstance(given, str):
            object.__setattr__(self, "tasks", _as_source(given))
        super().__post_init__()
        parse_columns(self.columns)
        if self.columns and self.tasks == type(self).tasks:
            raise ValueError(f"columns ({self.columns}) is for rows: tasks is {self.tasks!r}")


def _as_source(given: object) -> str:
    if isinstance(given, Path):
        return str(given)
    try:
        if not isinstance(given, Sequence):
            raise TypeError(f"got {given!r:.40}")
        return json.dumps([dict(row) for row in given])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"tasks must be a text, or rows of plain values, a list of dicts: {error}"
        ) from error


@runtime_checkable
class TakesRows(Protocol):
    """An environment class whose tasks may be rows of a data set."""

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[Any] | None:
        """The data set that the options name, or None if tasks are generated.

        Raises:
            ValueError: a row cannot be a task.
        """
        ...


def dataset_of(kind: type[Any], options: EnvOptions) -> Dataset[Any] | None:
    """The data set of an environment's tasks, or None if tasks are generated."""
    return kind.dataset(options) if isinstance(kind, TakesRows) else None


def split_to_evaluate(kind: type[Any], options: EnvOptions) -> str:
    """The split for evaluations: "test", or "all" if no row names a split.

    Raises:
        ValueError: a row cannot be a task.
    """
    data = dataset_of(kind, options)
    return ALL if data is not None and not data.named else "test"


def check_all(kind: type[Any], options: EnvOptions) -> None:
    """Check that split=all is not used with generated tasks.

    Raises:
        ValueError: split is "all", and the tasks are generated.
    """
    if options.split == ALL and not options.composed and dataset_of(kind, options) is None:
        raise ValueError(
            "split ('all') is for rows of a data set; these tasks are generated: choose train, "
            "validation or test"
        )
