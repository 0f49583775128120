"""``knights-knaves-v0``: knights always tell the truth, knaves always lie; who is what?

An episode has one turn. Its reward is that of Logic-RL (:mod:`envs.logic.knights.reward`)::

    Abel says: Boris is a knave.
    Boris says: Boris is a knave if and only if Abel is a knight.

    <think> ... </think> <answer> (1) Abel is a knave (2) Boris is a knight </answer>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, Reply, finish
from envs.logic.knights.puzzle import MAX_DEPTH, MAX_PEOPLE, MIN_PEOPLE, KnightsTasks, Puzzle
from envs.logic.knights.reward import (
    ANSWER_MISSING,
    ANSWER_RIGHT,
    FORMAT_RIGHT,
    FORMAT_WRONG,
    logic_rl_reward,
)
from envs.logic.knights.rows import RowPuzzle, load_knights
from envs.logic.knights.scripted_policies import GoldPolicy, HastyPolicy, answer_of
from envs.options import Card

INSTRUCTIONS = (
    "Everybody is a knight or a knave. Knights always tell the truth, knaves always lie. Find out "
    "who is what. Think between <think> and </think>, then list everybody between <answer> and "
    "</answer>: (1) Zoey is a knight (2) ..."
)


@dataclass(frozen=True, kw_only=True)
class KnightsKnavesOptions(RowOptions):
    """Options of people and statements."""

    people: int = 3
    """Number of people, from 2 to 8."""
    depth: int = 2
    """Nesting depth of statements, from 2 to 4. At depth 2, a statement joins claims about two
    people."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_PEOPLE <= self.people <= MAX_PEOPLE:
            raise ValueError(f"people ({self.people}) must be from {MIN_PEOPLE} to {MAX_PEOPLE}")
        # Depth 1 has so few puzzles that some splits would have none.
        if not 2 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"depth ({self.depth}) must be from 2 to {MAX_DEPTH}")
        if self.max_turns != 1:
            raise ValueError(f"max_turns ({self.max_turns}) must be 1: the first answer counts")


class KnightsKnavesEnv(TextEnv[Puzzle | RowPuzzle, Puzzle | RowPuzzle]):
    """Puzzles with exactly one solution; see the module's docstring."""

    Options = KnightsKnavesOptions
    card = Card(
        agent="deduces who tells the truth and who lies", reward="Logic-RL's: 3, -0.5, -1 or -3"
    )
    success_score = "solved"
    reward_range = (FORMAT_WRONG + ANSWER_MISSING, FORMAT_RIGHT + ANSWER_RIGHT)
    # Logic-RL's reward for the right tags without content: a third of the range.
    reward_floor = FORMAT_RIGHT + ANSWER_MISSING
    floor_waiver = "Logic-RL pays its format, which can be written without an answer"

    def __init__(
        self, options: KnightsKnavesOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(options, _tasks(options), services)
        self.system_prompt = INSTRUCTIONS if options.instructions else None

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[RowPuzzle] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(KnightsKnavesOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_knights(chosen.tasks, chosen.columns)

    def begin(self, task: Puzzle | RowPuzzle) -> str:
        """The statements of all people."""
        self.state = task
        return task.text()

    def turn(self, action: Action) -> Reply:
        """Reward the answer and end the episode."""
        rewards = logic_rl_reward(action, self.state.roles)
        scores = {
            "solved": float(rewards["answer"] == ANSWER_RIGHT),
            "format": float(rewards["format"] == FORMAT_RIGHT),
        }
        return finish(rewards, scores=scores)

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the number of people and the depth, with equal weights."""
        options = cast(KnightsKnavesOptions, self.options)
        if options.tasks != GENERATED:
            raise NotImplementedError("rows do not say how hard they are")
        people = (options.people - MIN_PEOPLE) / (MAX_PEOPLE - MIN_PEOPLE)
        return (people + (options.depth - 2) / (MAX_DEPTH - 2)) / 2

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that solves the puzzle.

        For rows it gives the row's answer, which no agent sees.
        """
        if cast(KnightsKnavesOptions, self.options).tasks == GENERATED:
            return GoldPolicy()
        roles = {task.text(): task.roles for task in cast("Sequence[RowPuzzle]", self.tasks)}
        return lambda observation: f"<think> </think> {answer_of(roles[observation])}"

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that tries one assignment after another and overlooks contradictions."""
        if cast(KnightsKnavesOptions, self.options).tasks != GENERATED:
            raise NotImplementedError("rows have no imperfect author")
        return HastyPolicy(rng)


def _tasks(options: KnightsKnavesOptions) -> Tasks[Puzzle | RowPuzzle]:
    data = KnightsKnavesEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return KnightsTasks(options.split, options.seed, options.people, options.depth)
