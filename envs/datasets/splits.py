"""Train, validation and test splits of a data set's rows.

The column ``split`` of a row names the row's split. Without the column, the name of the row's file
can name the split (:mod:`envs.datasets.rows`). If neither does, a hash of the row's key selects the
split: train 80, validation 10 and test 10 percent. If a data set has a train split but no
validation split, the same hash moves a tenth of the train rows to validation.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, TypeVar

from envs.datasets.rows import NoAnswer, Row

logger = logging.getLogger(__name__)
TaskT = TypeVar("TaskT")

SPLITS = ("train", "validation", "test")
"""The splits of every environment."""
ALL = "all"
"""Name that selects the tasks of all splits of a data set."""


class EmptySplit(ValueError):
    """Raised when a split of a data set has no rows; the message lists the other splits."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset(Generic[TaskT]):
    """The tasks of a data set, in the order of its rows."""

    source: str
    """Name of the source, for messages."""
    tasks: Sequence[TaskT]
    splits: Mapping[str, Sequence[TaskT]]
    """Tasks by split; a split without tasks is absent."""
    named: bool
    """Whether the rows name their splits; if False, a hash assigned them."""
    num_rows: int
    """Number of rows, including rows that cannot be tasks."""
    carved: tuple[int, int] | None = None
    """Number of train rows that were moved to validation, and number of all train rows. None if
    the rows name a validation split, or no split at all."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By split: for each row that was left out with a reason, the reason."""

    def reasons(self, split: str) -> Sequence[str]:
        """The reasons of the rows that one split, or all splits, left out."""
        if split == ALL:
            return [reason for reasons in self.left_out.values() for reason in reasons]
        return self.left_out.get(split, ())

    def split(self, name: str) -> Sequence[TaskT]:
        """The tasks of one split, or of all splits. Every call returns the same object.

        A warning, once, reports rows of the split that are left out, and rows that were moved from
        train to validation.

        Raises:
            EmptySplit: the split has no tasks.
        """
        if reasons := self.reasons(name):
            played = self.tasks if name == ALL else self.splits.get(name, ())
            num_rows = len(played) + len(reasons)
            _report_left_out(self.source, name, len(reasons), num_rows, reasons[0])
        if name == ALL:
            return self.tasks
        if self.carved is not None and name in ("train", "validation"):
            _report_carved(self.source, *self.carved)
        if name not in self.splits:
            counts = {split: len(tasks) for split, tasks in self.splits.items()}
            raise EmptySplit(
                f"{self.source}: no rows in split {name!r}; it has {counts}: name the split in a "
                f"column 'split', or in a file's name ({name}.jsonl)"
            )
        return self.splits[name]


def split_of(row: Row, key: str) -> str:
    """The split that a row's ``split`` column names, or that a hash of ``key`` selects.

    The hash selects train for 80, validation for 10 and test for 10 percent of keys.

    Args:
        row: the row.
        key: the row's key within its data set.

    Raises:
        ValueError: the column does not hold the name of a split.
    """
    if "split" in row.columns:
        named = str(row.columns["split"])
        if named not in SPLITS:
            raise ValueError(f"{row.where}: split ({named!r}) must be one of {', '.join(SPLITS)}")
        return named
    return {0: "test", 1: "validation"}.get(_hash(key) % 10, "train")


def arrange(
    found: Iterable[tuple[Row, str, TaskT]],
    source: str,
    num_rows: int = 0,
    left_out: Iterable[tuple[Row, str, str]] = (),
) -> Dataset[TaskT]:
    """Assign tasks to splits.

    Args:
        found: for each task: its row, the row's key, and the task.
        source: name of the source, for messages.
        num_rows: number of rows, including rows that cannot be tasks. 0 means the number of tasks.
        left_out: for each row that is left out: the row, the row's key, and the reason.

    Raises:
        NoAnswer: every row is left out; the message is the first reason.
        ValueError: as :func:`split_of`.
    """
    left_out = list(left_out)
    tasks, keys, chosen, named = list[TaskT](), list[str](), list[str](), set[str]()
    for row, key, task in found:
        tasks.append(task)
        keys.append(key)
        chosen.append(split_of(row, key))
        if "split" in row.columns:
            named.add(chosen[-1])
    if left_out and not tasks:
        raise NoAnswer(left_out[0][2])
    carved = None
    if "train" in named and "validation" not in named:
        carved = _carve(keys, chosen)
    splits: dict[str, list[TaskT]] = {}
    for task, split in zip(tasks, chosen, strict=True):
        splits.setdefault(split, []).append(task)
    without: dict[str, list[str]] = {}
    for row, key, reason in left_out:
        without.setdefault(split_of(row, key), []).append(reason)
    return Dataset(source, tasks, splits, bool(named), num_rows or len(tasks), carved, without)


def _carve(keys: Sequence[str], chosen: list[str]) -> tuple[int, int] | None:
    """Move a tenth of the train rows to validation. A hash selects the rows that move.

    At least one row moves, and at least one stays.

    Returns:
        Number of moved rows and of train rows, or None if all rows have the same key.
    """
    train = [index for index, split in enumerate(chosen) if split == "train"]
    distinct = {keys[index] for index in train}
    taken = {key for key in distinct if _hash(key) % 10 == 1}
    if len(distinct) < 2:
        return None
    if not taken or taken == distinct:
        taken = {min(distinct, key=_hash)}
    moved = [index for index in train if keys[index] in taken]
    for index in moved:
        chosen[index] = "validation"
    return len(moved), len(train)


@cache
def _report_left_out(source: str, split: str, count: int, num_rows: int, first: str) -> None:
    """Log that rows of a split are left out, once per source and split."""
    rows = "rows" if split == ALL else f"{split} rows"
    logger.warning(
        "%s: %d of %d %s are left out, because they cannot be tasks (the first: %s)",
        *(source, count, num_rows, rows, first),
    )


@cache
def _report_carved(source: str, moved: int, train: int) -> None:
    """Log that rows were moved to validation, once per source.

    The function is cached, because every episode makes an environment.
    """
    logger.warning(
        "%s has no validation split: %d of its %d train rows, chosen by a hash, are for "
        "validation and are not trained on",
        source,
        moved,
        train,
    )


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest())
