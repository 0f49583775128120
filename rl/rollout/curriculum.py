"""Choice of the tasks of a step: uniform, from easy to hard, or by failure rate.

``state_dict`` returns the whole state of a curriculum, so that a resumed run plays the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl.rollout.task_order import TaskOrder

_STREAM = 0x6B31
"""Makes a curriculum's random numbers differ from those of a task order with the same seed."""


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """Choice of the tasks of a training step."""

    order: Literal["uniform", "easy-to-hard", "prioritized"] = "uniform"
    """uniform: each task once per pass. easy-to-hard: sorted by the environment's difficulty.
    prioritized: in proportion to 1 - success rate (Kimi k1.5)."""
    pool: int = 0
    """Number of tasks to choose from, drawn once; 0 for all tasks of the split."""
    ramp_steps: int = 0
    """Number of steps for which easy-to-hard sorts tasks; 0 for all steps of the run."""
    max_draws: int = 1
    """Maximum number of draws per step or, with staleness, per group of the step. From 2 on,
    groups whose returns are all equal are replaced (DAPO's dynamic sampling)."""
    keep: float = 1.0
    """Share of a step's groups to learn from: the groups whose returns differ most (StarPO-S)."""

    def __post_init__(self) -> None:
        for key, least in (("pool", 0), ("ramp_steps", 0), ("max_draws", 1)):
            if getattr(self, key) < least:
                raise ValueError(f"{key} ({getattr(self, key)}) must be >= {least}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep ({self.keep}) must be above 0 and at most 1")
        if self.ramp_steps and self.order != "easy-to-hard":
            raise ValueError(
                f"ramp_steps ({self.ramp_steps}) is for order=easy-to-hard: order is {self.order}"
            )


class Curriculum:
    """Uniform choice: each task once per pass, in a new order per pass.

    This is also the base class of the other curricula.

    Args:
        tasks: indices into the split.
        seed: seed of the order.
    """

    def __init__(self, tasks: Sequence[int], seed: int) -> None:
        self.tasks = tasks
        self.seed = seed
        self.position = 0
        """Number of tasks taken so far."""
        self._order = TaskOrder(len(tasks), seed)

    def take(self, count: int) -> list[int]:
        """Take the next tasks."""
        places = self._order.take(self.position, count)
        self.position += count
        return [self.tasks[place] for place in places]

    def learn(self, task: int, successes: Sequence[float]) -> None:
        """Record the outcomes of a task's episodes, from 0 to 1 each."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain values."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.position = state["position"]


class EasyToHard(Curriculum):
    """Easy to hard: the first tasks of the uniform order by difficulty, then the uniform order.

    Args:
        tasks: indices into the split.
        seed: seed of the order.
        length: number of sorted tasks.
        difficulty: returns the difficulty of a task. Equally hard tasks keep the uniform order.

    Raises:
        ValueError: all sorted tasks are equally hard.
    """

    def __init__(
        self, tasks: Sequence[int], seed: int, length: int, difficulty: Callable[[int], float]
    ) -> None:
        super().__init__(tasks, seed)
        self._difficulty = difficulty
        self._sort(length)
        hardness = {difficulty(self._sorted[0]), difficulty(self._sorted[-1])}
        if len(hardness) < 2:
            raise ValueError(
                "curriculum.order (easy-to-hard): all tasks are equally hard: mix some, such as "
                'env=mix "env.of=knights-knaves(people=2) + knights-knaves(people=5)"'
            )

    def take(self, count: int) -> list[int]:
        """Take the next tasks, the easiest first while the ramp lasts."""
        start = self.position
        early = self._sorted[start : start + count]
        self.position += len(early)
        return early + super().take(count - len(early))

    def state_dict(self) -> dict[str, Any]:
        """The state, with the number of sorted tasks, which a longer resumed run keeps."""
        return {**super().state_dict(), "length": len(self._sorted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        super().load_state_dict(state)
        self._sort(state["length"])

    def _sort(self, length: int) -> None:
        first = [self.tasks[place] for place in self._order.take(0, length)]
        self._sorted = sorted(first, key=self._difficulty)


class Prioritized(Curriculum):
    """Tasks in proportion to 1 - s, where s is a task's success rate so far.

    Kimi k1.5 (arXiv:2501.12599, section 2.3.4) does not say over which episodes s is computed; here
    it covers all episodes of the task. A task that was never played has s = 0. No draw contains a
    task twice. If too few tasks have s < 1, tasks with s = 1 fill the rest of the draw.
    """

    def __init__(self, tasks: Sequence[int], seed: int) -> None:
        super().__init__(tasks, seed)
        self._places = None if isinstance(tasks, range) else {t: i for i, t in enumerate(tasks)}
        self._played: dict[int, tuple[float, int]] = {}
        """The sum of outcomes and the number of episodes, by index in ``tasks``."""

    def take(self, count: int) -> list[int]:
        """Draw the next tasks."""
        rng = np.random.default_rng([self.seed, _STREAM, self.position])
        self.position += count
        places: list[int] = []
        while len(places) < count:
            places += self._draw(rng, min(count - len(places), len(self.tasks)))
        return [self.tasks[place] for place in places]

    def learn(self, task: int, successes: Sequence[float]) -> None:
        """Update a task's success rate with the outcomes of its episodes."""
        place = task if self._places is None else self._places[task]
        total, count = self._played.get(place, (0.0, 0))
        self._played[place] = (total + sum(successes), count + len(successes))

    def weights(self) -> NDArray[np.float64]:
        """The weight 1 - s of every task, where s is the task's success rate."""
        weights = np.ones(len(self.tasks))
        for place, (total, count) in self._played.items():
            if count:
                # Rounding may make the sum slightly greater than the count.
                weights[place] = max(0.0, 1 - total / count)
        return weights

    def state_dict(self) -> dict[str, Any]:
        """The state, including the success rates."""
        return {**super().state_dict(), "played": dict(self._played)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        super().load_state_dict(state)
        self._played = dict(state["played"])

    def _draw(self, rng: np.random.Generator, count: int) -> list[int]:
        weights = self.weights()
        failing = np.flatnonzero(weights)
        shares = weights[failing] / weights.sum() if len(failing) else None
        drawn = rng.choice(failing, min(count, len(failing)), replace=False, p=shares)
        rest = rng.choice(np.flatnonzero(weights == 0), count - len(drawn), replace=False)
        return [int(place) for place in (*drawn, *rest)]


def make_curriculum(
    config: CurriculumConfig,
    num_tasks: int,
    seed: int,
    run_length: int,
    difficulty: Callable[[int], float],
) -> Curriculum:
    """Make the curriculum of a configuration.

    Args:
        config: the settings.
        num_tasks: number of tasks in the split.
        seed: seed of the run.
        run_length: number of tasks that easy-to-hard sorts: all tasks of the ramp or, without a
            ramp, of the run.
        difficulty: returns the difficulty of a task. Only easy-to-hard calls it.

    Raises:
        ValueError: the environment defines no difficulty, or all tasks are equally hard.
    """
    tasks: Sequence[int] = range(num_tasks)
    if 0 < config.pool < num_tasks:
        tasks = TaskOrder(num_tasks, seed).take(0, config.pool)
    if config.order == "uniform":
        return Curriculum(tasks, seed)
    if config.order == "prioritized":
        return Prioritized(tasks, seed)
    try:
        return EasyToHard(tasks, seed, run_length, difficulty)
    except NotImplementedError as error:
        raise ValueError(
            "curriculum.order (easy-to-hard): the environment does not say how hard its tasks "
            "are: write its difficulty(task_index)"
        ) from error
