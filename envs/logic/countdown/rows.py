"""Countdown tasks from rows with TinyZero's ``nums`` and ``target``, plain or in verl's layout.

TinyZero's own score requires that every number is used; set ``use_all=True`` for that.
"""

from __future__ import annotations

from typing import Any

from envs.datasets import Row, kept_while_unchanged
from envs.datasets.splits import Dataset
from envs.logic.countdown.arithmetic import CountdownTask
from envs.logic.rows import load_puzzles, need


@kept_while_unchanged
def load_countdown(source: str, columns: str = "") -> Dataset[CountdownTask]:
    """The tasks of a source of ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row is not such a task.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return load_puzzles(source, columns, _read, key_of)


def key_of(task: CountdownTask) -> str:
    """A task's key: its sorted numbers and its target."""
    return f"{sorted(task.numbers)} {task.target}"


def _read(row: Row) -> CountdownTask:
    numbers, target = need(row, "nums", "numbers"), need(row, "target")
    if not isinstance(numbers, list) or len(numbers) < 2 or not all(map(_is_number, numbers)):
        raise ValueError(f"{row.where}: expected two or more natural numbers, got {numbers!r:.40}")
    if not _is_number(target):
        raise ValueError(f"{row.where}: expected a natural number as target, got {target!r:.40}")
    return CountdownTask(tuple(map(int, numbers)), int(target))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0 <= value
    )
