"""The order of tasks: each task once per pass, in a new order per pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class TaskOrder:
    """An endless sequence of task indices. The number of tasks and the seed determine it.

    A position in the sequence is the whole state, so a resumed run neither repeats nor skips a
    task.
    """

    def __init__(self, num_tasks: int, seed: int) -> None:
        self.num_tasks = num_tasks
        self.seed = seed
        self._pass: tuple[int, NDArray[np.int64]] | None = None

    def take(self, start: int, count: int) -> list[int]:
        """``count`` tasks of the sequence, starting at position ``start``."""
        return list(self._from(start, count))

    def _from(self, start: int, count: int) -> Iterator[int]:
        for position in range(start, start + count):
            number, place = divmod(position, self.num_tasks)
            yield int(self._permutation(number)[place])

    def _permutation(self, number: int) -> NDArray[np.int64]:
        if self._pass is None or self._pass[0] != number:
            rng = np.random.default_rng([self.seed, number])
            self._pass = (number, rng.permutation(self.num_tasks))
        return self._pass[1]
