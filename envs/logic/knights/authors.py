"""Who can play: an author that solves the puzzle, and the hasty one that warm starts imitate."""

from __future__ import annotations

import numpy as np

from envs.logic.knights.puzzle import Puzzle, read
from envs.logic.knights.statements import ROLES, truth

OVERLOOKS = 0.25
"""How often the hasty author does not see that somebody would be out of character."""


def answer(names: tuple[str, ...], assignment: int) -> str:
    """The answer that says so."""
    told = (
        f"({place}) {name} is a {ROLES[assignment >> place - 1 & 1]}"
        for place, name in enumerate(names, start=1)
    )
    return f"<answer> {' '.join(told)} </answer>"


class GoldAuthor:
    """Reads what everybody says, and knows."""

    def __call__(self, observation: str) -> str:
        """The answer.

        Raises:
            ValueError: the observation is no puzzle.
        """
        puzzle = read(observation)
        return f"<think> </think> {answer(puzzle.names, puzzle.solution)}"


class HastyAuthor:
    """Thinks one assignment after another through, and takes the first that seems to fit.

    A thought is the roles in order, and the first person whom they make speak out of character::

        knight knight Oliver , knave knight ok

    Args:
        rng: of its oversights.
        overlooks: how often it does not see such a person.
    """

    def __init__(self, rng: np.random.Generator, overlooks: float = OVERLOOKS) -> None:
        self._rng, self._overlooks = rng, overlooks

    def __call__(self, observation: str) -> str:
        """Thoughts and an answer."""
        puzzle, thoughts = read(observation), list[str]()
        people = len(puzzle.names)
        for assignment in reversed(range(1 << people)):
            roles = " ".join(ROLES[assignment >> i & 1] for i in range(people))
            wrong = self._out_of_character(puzzle, assignment)
            thoughts.append(f"{roles} {wrong or 'ok'}")
            if not wrong:
                break
        return f"<think> {' , '.join(thoughts)} </think> {answer(puzzle.names, assignment)}"

    def _out_of_character(self, puzzle: Puzzle, assignment: int) -> str | None:
        people = len(puzzle.names)
        for speaker, statement in enumerate(puzzle.statements):
            true = truth(statement, people) >> assignment & 1
            if true != assignment >> speaker & 1 and self._rng.random() >= self._overlooks:
                return puzzle.names[speaker]
        return None
