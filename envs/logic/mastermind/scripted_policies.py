"""Two scripted policies: one narrows down the codes; the other is patient, for warm starts."""

from __future__ import annotations

import re

import numpy as np

from envs.logic.mastermind.codes import Codes, Feedback, Game, game

OVERLOOKS = 0.5
"""Probability that the patient policy overlooks an answer."""
_MOST_GUESSES, _MOST_CODES = 40, 1000

_START = re.compile(r"The code has (\d) digits from 1 to (\d)(, none of them twice)?\.")
_SAID = re.compile(r"(\d) black, (\d) white\.")


class Reader:
    """What both policies know: the rules, the guesses and their answers."""

    def __init__(self) -> None:
        self.rules: Game | None = None
        self.past: list[tuple[str, Feedback]] = []
        self._last = ""

    def hear(self, observation: str) -> Game:
        """Record an observation and return the game.

        Raises:
            ValueError: the observation is neither the start of a game nor an answer to a guess.
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


class GoldPolicy:
    """Guesses the possible code that leaves the fewest possible codes in the worst case.

    This is the strategy of Knuth, "The Computer as Master Mind" (1976), except that only possible
    codes are guessed. If many codes are possible, the policy considers only a sample of them.
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


class PatientPolicy:
    """Keeps its best guess and tries one digit after another in one position after another.

    If a change raises the number of black digits, the change stays; if it lowers the number, the
    old digit was right. In both cases the next position follows::

        111   1 black
        211   2 black: more
        221   2 black: neither
        231

    Args:
        rng: draws the errors.
        overlooks: probability of overlooking a change of the number of black digits.
    """

    def __init__(self, rng: np.random.Generator, overlooks: float = OVERLOOKS) -> None:
        self._rng, self._overlooks, self._reader = rng, overlooks, Reader()
        self._best, self._black, self._place, self._digit = "", 0, 0, 1

    def __call__(self, observation: str) -> str:
        """The next guess."""
        rules = self._reader.hear(observation)
        if not self._reader.past:
            self._best, self._place, self._digit = "1" * rules.pegs, 0, 1
            return self._reader.guess(self._best)
        self._learn(*self._reader.past[-1])
        self._advance(rules)
        digits = list(self._best)
        digits[self._place] = str(self._digit)
        return self._reader.guess("".join(digits))

    def _learn(self, guess: str, said: Feedback) -> None:
        if len(self._reader.past) == 1:
            self._black = said.black
        elif said.black != self._black and self._rng.random() >= self._overlooks:
            if said.black > self._black:
                self._best, self._black = guess, said.black
            self._place, self._digit = self._place + 1, 0

    def _advance(self, rules: Game) -> None:
        """Choose the next digit to try at this position, or at the next one if none is left.

        The digit that the best guess has at the position is not tried again.
        """
        while True:
            self._digit += 1
            if self._digit > rules.colours:
                self._place, self._digit = self._place + 1, 1
            # After the last position, the policy has overlooked something and starts again.
            self._place %= rules.pegs
            if str(self._digit) != self._best[self._place]:
                return


def _spread(codes: Codes, most: int) -> Codes:
    """At most ``most`` of the codes, evenly spaced."""
    return codes if len(codes) <= most else codes[np.linspace(0, len(codes) - 1, most, dtype=int)]
