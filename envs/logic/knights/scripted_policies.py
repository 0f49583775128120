"""Scripted policies: one that solves the puzzle, and a hasty one that warm starts imitate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.logic.knights.puzzle import Puzzle, read
from envs.logic.knights.statements import ROLES, joins, leaves, truth

OVERLOOKS = 0.4
"""Probability that the hasty policy overlooks a contradiction between a statement and a role."""

_SO = ("false", "true")


def answer(names: tuple[str, ...], assignment: int) -> str:
    """The answer that states the roles of an assignment."""
    return answer_of({name: ROLES[assignment >> i & 1] for i, name in enumerate(names)})


def answer_of(roles: Mapping[str, str]) -> str:
    """The answer that states these roles, which are "knight" or "knave" by name."""
    rows = (f"({place}) {name} is a {role}" for place, (name, role) in enumerate(roles.items(), 1))
    return f"<answer> {' '.join(rows)} </answer>"


class GoldPolicy:
    """Reads the statements and solves the puzzle."""

    def __call__(self, observation: str) -> str:
        """The answer to a puzzle.

        Raises:
            ValueError: the observation is not a puzzle.
        """
        puzzle = read(observation)
        return f"<think> </think> {answer(puzzle.names, puzzle.solution)}"


class HastyPolicy:
    """Checks one assignment after another, and answers with the first that seems consistent.

    The policy writes one line of thought for each part of a statement: the speaker, everyone's role
    under the assignment, the claim (a name and a role), whether the claim is true, whether the
    statement so far is true, and the next joining word. At the end of a statement, the last word
    says whether the statement fits its speaker's role::

        Boris knight knave knight Carl knave false false iff

    Args:
        rng: draws the errors.
        overlooks: probability of overlooking a contradiction.
    """

    def __init__(self, rng: np.random.Generator, overlooks: float = OVERLOOKS) -> None:
        self._rng, self._overlooks = rng, overlooks

    def __call__(self, observation: str) -> str:
        """The thoughts and the answer."""
        puzzle, thoughts = read(observation), list[str]()
        for assignment in reversed(range(1 << len(puzzle.names))):
            if self._fits(puzzle, assignment, thoughts):
                break
        return f"<think> {' '.join(thoughts)} </think> {answer(puzzle.names, assignment)}"

    def _fits(self, puzzle: Puzzle, assignment: int, thoughts: list[str]) -> bool:
        """Whether all statements seem to fit the assignment.

        Appends the reasoning to ``thoughts``.
        """
        people = len(puzzle.names)
        roles = " ".join(ROLES[assignment >> place & 1] for place in range(people))
        for speaker, statement in enumerate(puzzle.statements):
            true = truth(statement, people) >> assignment & 1
            fits = true == assignment >> speaker & 1 or self._rng.random() < self._overlooks
            verdict = "fits" if fits else "not"
            for part, then in zip(leaves(statement), [*joins(statement), verdict], strict=True):
                so = truth(part, people) >> assignment & 1
                so_far = true if then == verdict else so
                role, place = part
                thoughts.append(
                    f"{puzzle.names[speaker]} {roles} {puzzle.names[place]} {role} "
                    f"{_SO[so]} {_SO[so_far]} {then}"
                )
            if not fits:
                return False
        return True
