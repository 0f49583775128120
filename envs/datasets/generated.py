"""Generated puzzles with disjoint splits. (split, index, seed) determines a puzzle.

Every puzzle has a key: its content without its wording. A fixed hash of the key selects the split,
for any seed. A task is drawn repeatedly until it belongs to its split, so no puzzle is in two
splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NUM_TASKS = {"train": 1_000_000, "validation": 1024, "test": 4096}
# One draw in ten is of the test split; a family without puzzles for it must not search forever.
_MOST_DRAWS = 2000


def split_of(key: str) -> str:
    """The split of a key. The hash assigns 10% to test, 10% to validation and the rest to train."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) % 10
    return {0: "test", 1: "validation"}.get(bucket, "train")


def task_rng(family: str, split: str, seed: int, index: int) -> random.Random:
    """The random generator of one task."""
    return random.Random(f"{family} {split} {seed} {index}")


def check_index(index: int, split: str) -> None:
    """Check that a split has a task with this index.

    Raises:
        IndexError: there is no such task.
    """
    if not 0 <= index < NUM_TASKS[split]:
        raise IndexError(f"task {index} of split {split!r}: 0 to {NUM_TASKS[split] - 1}")


class DrawnTasks(Generic[T]):
    """The puzzles of one split.

    Args:
        family: name of the kind of puzzles, including its options. The name is part of the random
            seed, so different families have different random numbers.
        split: "train", "validation" or "test".
        seed: seed of the puzzles.
        draw: draws a puzzle from a generator.
        key: returns a puzzle's key.
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
