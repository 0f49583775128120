"""Who can play: an author that narrows the codes down, and the forgetful one for warm starts."""

from __future__ import annotations

import re

import numpy as np

from envs.logic.mastermind.codes import Codes, Feedback, Game, game

FORGETS = 0.6
"""How often the forgetful author does not think of an earlier guess."""
_MOST_GUESSES, _MOST_CODES = 40, 1000

_START = re.compile(r"The code has (\d) digits from 1 to (\d)(, none of them twice)?\.")
_SAID = re.compile(r"(\d) black, (\d) white\.")


class Reader:
    """What both authors know: the rules, their guesses, and what was said of each."""

    def __init__(self) -> None:
        self.rules: Game | None = None
        self.past: list[tuple[str, Feedback]] = []
        self._last = ""

    def hear(self, observation: str) -> Game:
        """Take an observation in.

        Raises:
            ValueError: it is neither the start of a game nor what is said of a guess.
        """
        start, said = _START.search(observation), _SAID.search(observation)
        if start is not None:
            self.rules = game(int(start[1]), int(start[2]), start[3] is None)
            self.past.clear()
        elif self.rules is not None and said is not None:
            self.past.append((self._last, Feedback(int(said[1]), int(said[2]))))
        else:
            raise ValueError(f"{observation!r} neither starts a game nor speaks of a guess")
        return self.rules

    def guess(self, code: str) -> str:
        """The action that guesses a code."""
        self._last = code
        return f"<guess> {code} </guess>"


class GoldAuthor:
    """Of the codes that are still possible, guesses the one that leaves fewest at worst.

    Knuth, "The Computer as Master Mind" (1976), restricted to possible codes, and to a spread of
    them where there are many.
    """

    def __init__(self) -> None:
        self._reader = Reader()

    def __call__(self, observation: str) -> str:
        """The next guess."""
        rules = self._reader.hear(observation)
        left = rules.everything()
        for guess, said in self._reader.past:
            left = rules.possible(guess, said, left)
        codes = _spread(left, _MOST_CODES)

        def most_left(guess: int) -> int:
            return int(np.bincount(rules.answers(rules.codes[guess], codes)).max())

        best = min(_spread(left, _MOST_GUESSES).tolist(), key=most_left)
        return self._reader.guess(rules.codes[best])


class ForgetfulAuthor:
    """Guesses some code that is possible by what it remembers.

    Args:
        rng: of its guesses and of what it forgets.
        forgets: how often it does not think of an earlier guess.
    """

    def __init__(self, rng: np.random.Generator, forgets: float = FORGETS) -> None:
        self._rng, self._forgets, self._reader = rng, forgets, Reader()

    def __call__(self, observation: str) -> str:
        """The next guess."""
        rules = self._reader.hear(observation)
        left = rules.everything()
        for guess, said in self._reader.past:
            if self._rng.random() >= self._forgets:
                left = rules.possible(guess, said, left)
        return self._reader.guess(rules.codes[int(self._rng.choice(left))])


def _spread(codes: Codes, most: int) -> Codes:
    """At most so many of the codes, evenly spaced."""
    return codes if len(codes) <= most else codes[np.linspace(0, len(codes) - 1, most, dtype=int)]
