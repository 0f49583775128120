"""Who can play: an author that solves the puzzle, and the hasty one that warm starts imitate."""

from __future__ import annotations

import numpy as np

from envs.logic.knights.puzzle import Puzzle, read
from envs.logic.knights.statements import ROLES, truth

OVERLOOKS = 0.4
"""How often the hasty author takes for true what a knight says, and for false what a knave says."""


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

    A thought is who would be what, and then whether what each of them says would be true, up to
    the first who would be out of character::

        Zoey knight Oliver knight : true false , Zoey knave Oliver knight : false true

    Args:
        rng: of its oversights.
        overlooks: how often it does not compare a person's words with the others' roles.
    """

    def __init__(self, rng: np.random.Generator, overlooks: float = OVERLOOKS) -> None:
        self._rng, self._overlooks = rng, overlooks

    def __call__(self, observation: str) -> str:
        """Thoughts and an answer."""
        puzzle, thoughts = read(observation), list[str]()
        for assignment in reversed(range(1 << len(puzzle.names))):
            thought, fits = self._think(puzzle, assignment)
            thoughts.append(thought)
            if fits:
                break
        return f"<think> {' , '.join(thoughts)} </think> {answer(puzzle.names, assignment)}"

    def _think(self, puzzle: Puzzle, assignment: int) -> tuple[str, bool]:
        people, words, fits = len(puzzle.names), list[str](), True
        for place, name in enumerate(puzzle.names):
            words += [name, ROLES[assignment >> place & 1]]
        words.append(":")
        for place, statement in enumerate(puzzle.statements):
            knight = assignment >> place & 1
            true = truth(statement, people) >> assignment & 1
            if self._rng.random() < self._overlooks:
                true = knight
            words.append("true" if true else "false")
            if true != knight:
                fits = False
                break
        return " ".join(words), fits
