"""Codes, feedback on guesses, and the codes that are still possible."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from envs.datasets.generated import DrawnTasks

Codes = npt.NDArray[np.int64]
"""A set of codes, as sorted indices of ``Game.codes``."""

MIN_CODES, MAX_CODES = 100, 10_000
"""Limits of the number of codes. With fewer, a split may have none; with more, turns take too
long."""
MAX_PEGS, MAX_COLOURS = 6, 9

_GUESS = re.compile(r"<guess>([\s\d]*)</guess>", re.ASCII)


@dataclass(frozen=True, slots=True)
class Feedback:
    """The feedback on a guess."""

    black: int
    """Number of right digits in the right position."""
    white: int
    """Number of right digits in a wrong position."""


class Game:
    """All codes of ``pegs`` digits, each from 1 to ``colours``.

    Args:
        pegs: digits per code.
        colours: the largest digit.
        repeats: whether a code may hold a digit twice.
    """

    def __init__(self, pegs: int, colours: int, repeats: bool) -> None:
        self.pegs, self.colours, self.repeats = pegs, colours, repeats
        digits = range(1, colours + 1)
        self.codes = tuple(
            "".join(map(str, code))
            for code in product(digits, repeat=pegs)
            if repeats or len(set(code)) == pegs
        )
        self._digits = np.array([[int(digit) for digit in code] for code in self.codes], np.int8)
        self._counts = np.stack([(self._digits == d).sum(axis=1) for d in digits], axis=1)

    def everything(self) -> Codes:
        """Indices of all codes."""
        return np.arange(len(self.codes))

    def is_guess(self, text: str) -> bool:
        """Whether a text is a valid guess.

        Guesses may always repeat digits, even if codes do not.
        """
        return len(text) == self.pegs and all("1" <= d <= str(self.colours) for d in text)

    def answers(self, guess: str, among: Codes) -> npt.NDArray[np.int64]:
        """The feedback on a guess for each code in ``among``, as ``black * (pegs + 1) + white``."""
        digits = np.array([int(digit) for digit in guess], np.int8)
        counts = np.bincount(digits, minlength=self.colours + 1)[1:]
        black = (self._digits[among] == digits).sum(axis=1)
        common = np.minimum(self._counts[among], counts).sum(axis=1)
        return np.asarray(black * (self.pegs + 1) + common - black, np.int64)

    def possible(self, guess: str, said: Feedback, among: Codes) -> Codes:
        """The codes in ``among`` for which the guess gets the feedback ``said``."""
        answer = said.black * (self.pegs + 1) + said.white
        left: Codes = among[self.answers(guess, among) == answer]
        return left


def feedback(guess: str, secret: str) -> Feedback:
    """The feedback on a guess at the code ``secret``."""
    black = sum(one == other for one, other in zip(guess, secret, strict=True))
    common = sum(min(guess.count(digit), secret.count(digit)) for digit in set(guess))
    return Feedback(black, common - black)


@cache
def game(pegs: int, colours: int, repeats: bool) -> Game:
    """The game with these rules. It is cached and must not be modified."""
    return Game(pegs, colours, repeats)


def num_codes(pegs: int, colours: int, repeats: bool) -> int:
    """Number of codes of a game."""
    count = 1
    for place in range(pegs):
        count *= colours if repeats else max(colours - place, 0)
    return count


def parse_guess(text: str) -> str | None:
    """The digits between ``<guess>`` and ``</guess>``.

    None if either tag does not occur exactly once, or if there is no guess between the tags.
    """
    if text.count("<guess>") != 1 or text.count("</guess>") != 1:
        return None
    found = _GUESS.search(text)
    return "".join(found[1].split()) if found else None


class CodeTasks(DrawnTasks[str]):
    """The secret codes of one split. No code is in two splits."""

    def __init__(self, split: str, seed: int, rules: Game) -> None:
        def draw(rng: random.Random) -> str:
            return rules.codes[int(rng.random() * len(rules.codes))]

        family = f"mastermind {rules.pegs} {rules.colours} {rules.repeats}"
        super().__init__(family, split, seed, draw, lambda code: code)
