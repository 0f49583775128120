"""Which rows of a data set are for training, for validation and for testing.

A row's split is its column ``split``, else its file's name (:mod:`envs.datasets`), else a hash of
what names it: 80, 10 and 10 percent. A data set with a train split and no validation split gives a
tenth of its train rows, by the same hash, to validation.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from envs.datasets.rows import Row

logger = logging.getLogger(__name__)
TaskT = TypeVar("TaskT")

SPLITS = ("train", "validation", "test")
"""The splits of every environment."""
ALL = "all"
"""Selects every task of a data set, of any split."""


class EmptySplit(ValueError):
    """Raised when a split of a data set has no rows; names the splits that have some."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset(Generic[TaskT]):
    """The tasks of a data set, in the order of its rows."""

    source: str
    """Where the rows come from, for messages."""
    tasks: Sequence[TaskT]
    splits: Mapping[str, Sequence[TaskT]]
    """Tasks by split; a split without tasks is absent."""
    named: bool
    """Whether rows name their split; False: a hash chose every split."""
    num_rows: int
    """Rows, those that cannot be tasks included."""
    carved: tuple[int, int] | None = None
    """How many train rows were moved to validation, and of how many; None: the rows name a
    validation split, or no split at all."""

    def split(self, name: str) -> Sequence[TaskT]:
        """The tasks of one split, or of all; the same object every time.

        A train or validation split that was carved is reported once, in the log.

        Raises:
            EmptySplit: there are none.
        """
        if name == ALL:
            return self.tasks
        if self.carved is not None and name in ("train", "validation"):
            _report_carved(self.source, *self.carved)
        if name not in self.splits:
            counts = {split: len(tasks) for split, tasks in self.splits.items()}
            raise EmptySplit(
                f"{self.source}: no rows in split {name!r}; it has {counts}: say it in a column "
                f"'split', or in a file's name ({name}.jsonl)"
            )
        return self.splits[name]


def split_of(row: Row, key: str) -> str:
    """The split of a row: its ``split`` column, else by a hash of ``key`` (80, 10, 10 percent).

    Args:
        row: the row.
        key: what names it within its data set.

    Raises:
        ValueError: the column holds something else.
    """
    if "split" in row.columns:
        named = str(row.columns["split"])
        if named not in SPLITS:
            raise ValueError(f"{row.where}: split ({named!r}) must be one of {', '.join(SPLITS)}")
        return named
    return {0: "test", 1: "validation"}.get(_hash(key) % 10, "train")


def arrange(
    found: Iterable[tuple[Row, str, TaskT]], source: str, num_rows: int = 0
) -> Dataset[TaskT]:
    """Tasks by their splits.

    Args:
        found: each task with its row and with what names it within its data set.
        source: where the rows come from, for messages.
        num_rows: rows, those that cannot be tasks included; 0: as many as tasks.

    Raises:
        ValueError: as :func:`split_of`.
    """
    tasks, keys, chosen, named = list[TaskT](), list[str](), list[str](), False
    for row, key, task in found:
        tasks.append(task)
        keys.append(key)
        chosen.append(split_of(row, key))
        named = named or "split" in row.columns
    carved = None
    if named and "train" in chosen and "validation" not in chosen:
        carved = _carve(keys, chosen)
    splits: dict[str, list[TaskT]] = {}
    for task, split in zip(tasks, chosen, strict=True):
        splits.setdefault(split, []).append(task)
    return Dataset(source, tasks, splits, named, num_rows or len(tasks), carved)


def _carve(keys: Sequence[str], chosen: list[str]) -> tuple[int, int] | None:
    """Give a tenth of the train rows to validation: the rows that a hash would give to it.

    Of a few rows it is at least one, and never all of them.

    Returns:
        How many rows were moved, and of how many; None where one row, or one text, is all there is.
    """
    train = [place for place, split in enumerate(chosen) if split == "train"]
    distinct = {keys[place] for place in train}
    taken = {key for key in distinct if _hash(key) % 10 == 1}
    if len(distinct) < 2:
        return None
    if not taken or taken == distinct:
        taken = {min(distinct, key=_hash)}
    moved = [place for place in train if keys[place] in taken]
    for place in moved:
        chosen[place] = "validation"
    return len(moved), len(train)


@cache
def _report_carved(source: str, moved: int, train: int) -> None:
    """Every episode makes an environment, which asks for its split: the log says it once."""
    logger.warning(
        "%s has no validation split: %d of its %d train rows, chosen by a hash, are for "
        "validation and are not trained on",
        source,
        moved,
        train,
    )


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest())
