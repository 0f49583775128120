"""In which order tasks are played: each once per pass, a new order in every pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class TaskOrder:
    """An endless sequence of task indices that depends on (number of tasks, seed) alone.

    A position in it is all the state there is, so a resumed run repeats no task and skips none.
    """

    def __init__(self, num_tasks: int, seed: int) -> None:
        self.num_tasks = num_tasks
        self.seed = seed
        self._pass: tuple[int, NDArray[np.int64]] | None = None

    def take(self, start: int, count: int) -> list[int]:
        """Tasks ``start`` to ``start + count`` of the sequence."""
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
