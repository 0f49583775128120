"""``countdown-v0``: make a number out of other numbers with ``+ - * /`` and parentheses.

::

    Numbers: 3 7 8 21. Make 24.
    <think> ... </think> <answer> 21 / 7 * 8 </answer>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, Reply, finish, go_on
from envs.logic.answers import only_answer
from envs.logic.countdown.arithmetic import (
    MAX_TARGET,
    BadExpression,
    CountdownTask,
    CountdownTasks,
    find,
    made_of,
)
from envs.logic.countdown.rows import load_countdown
from envs.options import Card

_OBSERVATION = re.compile(r"Numbers: ([\d ]+)\. Make (\d+)\.")


@dataclass(frozen=True, kw_only=True)
class CountdownOptions(RowOptions):
    """Options of numbers and rewards."""

    numbers: int = 4
    """How many numbers a task has, from 3 to 6."""
    largest: int = 25
    """The largest possible number, from 10 to 100. The target is also between 10 and 100."""
    use_all: bool = False
    """Whether the expression must use every number. No number may be used more often than the task
    lists it."""
    format_reward: float = 0.1
    """Reward at the end for a valid expression that does not equal the target."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 3 <= self.numbers <= 6:
            raise ValueError(f"numbers ({self.numbers}) must be from 3 to 6")
        if not 10 <= self.largest <= MAX_TARGET:
            raise ValueError(f"largest ({self.largest}) must be from 10 to {MAX_TARGET}")
        if not 0 <= self.format_reward <= 0.3:
            raise ValueError(f"format_reward ({self.format_reward}) must be from 0 to 0.3")


class CountdownEnv(TextEnv[CountdownTask, CountdownTask]):
    """Numbers and a target; the agent may correct a wrong expression while turns are left."""

    Options = CountdownOptions
    card = Card(
        agent="combines given numbers into a target",
        turns="1, or more",
        reward="1 if right; 0.1 for another number",
    )
    success_score = "solved"

    def __init__(
        self, options: CountdownOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(options, _tasks(options), services)
        self.reward_floor = options.format_reward
        self.system_prompt = _instructions(options.use_all) if options.instructions else None

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[CountdownTask] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(CountdownOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_countdown(chosen.tasks, chosen.columns)

    def begin(self, task: CountdownTask) -> str:
        """The numbers and the target."""
        self.state = task
        return f"Numbers: {' '.join(map(str, task.numbers))}. Make {task.target}."

    def turn(self, action: Action) -> Reply:
        """Evaluate the expression; reply with a message about the mistake, or end the episode."""
        target, options = self.state.target, cast(CountdownOptions, self.options)
        value: Fraction | None = None
        answer = only_answer(action.content)
        if answer is None:
            message = "There is not exactly one <answer> with its </answer>."
        else:
            try:
                value = made_of(self.state.numbers, answer, options.use_all)
                message = f"That makes {value}, not {target}."
            except BadExpression as error:
                message = f"No sum: {error}."
        solved = value == target
        scores = {"solved": float(solved), "format": float(value is not None)}
        if not solved and self.turns_left > 1:
            return go_on(message, scores=scores)
        earned = options.format_reward if value is not None and not solved else 0.0
        return finish({"answer": float(solved), "format": earned}, scores=scores)

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the number of numbers."""
        options = cast(CountdownOptions, self.options)
        if options.tasks == GENERATED:
            return (options.numbers - 3) / 3
        return min(1.0, max(0.0, (len(self.tasks[task_index].numbers) - 3) / 3))

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that solves the task by exhaustive search."""
        return self._solve

    def _solve(self, observation: str) -> str:
        match = _OBSERVATION.fullmatch(observation)
        if match is None:
            raise ValueError(f"{observation!r} names no numbers and target")
        numbers = [int(number) for number in match[1].split()]
        found = find(numbers, int(match[2]), cast(CountdownOptions, self.options).use_all)
        return f"<think> </think> <answer> {found} </answer>"


def _tasks(options: CountdownOptions) -> Tasks[CountdownTask]:
    data = CountdownEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return CountdownTasks(options.split, options.seed, options.numbers, options.largest)


def _instructions(use_all: bool) -> str:
    often = "exactly once" if use_all else "at most once"
    return (
        f"Make the target out of the numbers, each used {often}, with + - * / and parentheses. "
        "Think between <think> and </think>, then write the expression alone between <answer> and "
        "</answer>."
    )
