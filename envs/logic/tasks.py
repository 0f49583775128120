"""Drawn puzzles: as many as wanted, each a function of (split, index, seed), splits held apart.

Every puzzle has a key: what it is about, without what could be worded differently. A fixed hash of
the key says which split the puzzle belongs to, whatever the seed; a split's tasks are drawn until
one belongs to it. So no key, and with it no puzzle, is in two splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NUM_TASKS = {"train": 1_000_000, "validation": 1024, "test": 4096}
# One draw in ten is of the test split; a family that has no puzzles for it must not search forever.
_MOST_DRAWS = 2000


def split_of(key: str) -> str:
    """The one split of a key: 10% test, 10% validation, the rest train."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) % 10
    return {0: "test", 1: "validation"}.get(bucket, "train")


def task_rng(family: str, split: str, seed: int, index: int) -> random.Random:
    """The generator of one task."""
    return random.Random(f"{family} {split} {seed} {index}")


def check_index(index: int, split: str) -> None:
    """Refuse an index that a split does not have.

    Raises:
        IndexError: there is no such task.
    """
    if not 0 <= index < NUM_TASKS[split]:
        raise IndexError(f"task {index} of split {split!r}: 0 to {NUM_TASKS[split] - 1}")


class DrawnTasks(Generic[T]):
    """The puzzles of one split.

    Args:
        family: what is drawn, options included; two families are drawn independently.
        split: "train", "validation" or "test".
        seed: of the drawing.
        draw: a puzzle, from a generator.
        key: what the puzzle is about, as a text.
    """

    def __init__(
        self,
        family: str,
        split: str,
        seed: int,
        draw: Callable[[random.Random], T],
        key: Callable[[T], str],
    ) -> None:
        self._family, self._split, self._seed = family, split, seed
        self._draw, self._key = draw, key

    def __len__(self) -> int:
        return NUM_TASKS[self._split]

    def __getitem__(self, index: int) -> T:
        """Task ``index``.

        Raises:
            IndexError: there is no such task.
            ValueError: this family has no puzzle in this split.
        """
        check_index(index, self._split)
        rng = task_rng(self._family, self._split, self._seed, index)
        for _ in range(_MOST_DRAWS):
            task = self._draw(rng)
            if split_of(self._key(task)) == self._split:
                return task
        raise ValueError(f"{self._family}: {_MOST_DRAWS} draws gave none for {self._split!r}")
