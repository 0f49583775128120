"""Scripted policies: a perfect one, and a sloppy one that warm starts imitate."""

from __future__ import annotations

import re

import numpy as np

from envs.code.generated import PROMPT
from envs.code.grammar import CONSTANTS, Recipe, Step, parse

LEAVES_OUT = 0.7
"""Probability with which the sloppy policy omits a second filter; the same for a second map."""
READS_FEEDBACK = 0.6
"""Probability with which the sloppy policy takes a withheld constant from the feedback."""

_RESULT = re.compile(r"f\(\[(-?\d+)\]\) .*, expected (?:\[(-?\d+)\]|(-?\d+))", re.DOTALL)


def read_constant(recipe: Recipe, feedback: str) -> int | None:
    """The withheld constant that a public test's result reveals, or None if it reveals none."""
    result = _RESULT.fullmatch(feedback)
    if result is None:
        return None
    inside, bare = result[2], result[3]
    expected = int(bare) if inside is None else [int(inside)]
    for constant in CONSTANTS:
        if recipe.filled(constant).run([int(result[1])]) == expected:
            return constant
    return None


class GoldPolicy:
    """Implements the description, and takes a withheld constant from the tests' results."""

    def __init__(self) -> None:
        self._recipe: Recipe | None = None

    def __call__(self, observation: str) -> str:
        """The program for a description, or the repaired program for a test's result.

        Raises:
            ValueError: the observation is neither a description nor a test's result.
        """
        if self._recipe is None:
            self._recipe = parse(observation.removeprefix(PROMPT))
            return self._recipe.filled(CONSTANTS[0]).program()
        constant = read_constant(self._recipe, observation)
        if constant is None:
            raise ValueError(f"{observation!r} does not show the withheld constant")
        return self._recipe.filled(constant).program()


class SloppyPolicy:
    """Often omits a second filter or map, and guesses withheld constants.

    It takes a withheld constant from the feedback only with probability ``READS_FEEDBACK``.

    Args:
        rng: draws the errors.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._recipe: Recipe | None = None

    def __call__(self, observation: str) -> str:
        """The sloppy program for an observation."""
        rng = self._rng
        constant: int | None = None
        if self._recipe is None:
            self._recipe = leave_out(parse(observation.removeprefix(PROMPT)), rng)
        elif rng.random() < READS_FEEDBACK:
            constant = read_constant(self._recipe, observation)
        if constant is None:
            constant = int(rng.choice(CONSTANTS))
        return self._recipe.filled(constant).program()


def leave_out(recipe: Recipe, rng: np.random.Generator) -> Recipe:
    """The recipe, in most cases without its second filter and without its second map.

    A filter or map whose constant is withheld is always kept.
    """

    def forgotten(step: Step) -> bool:
        withheld = step.takes_constant and step.constant is None
        return rng.random() < LEAVES_OUT and not withheld

    for step in (*recipe.filters[1:], *recipe.maps[1:]):
        if forgotten(step):
            recipe = recipe.without(step)
    return recipe
