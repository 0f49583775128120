"""``talk-v0``: a guess between words, where only the words before it matter.

The first turn is any number of words and a guess, the second any number of words::

    3 or 8?
    um um 8
    Wrong.
    um um um um

The right digit is random. The listener hears a guess after at most ``patience`` words, a number
that is drawn for each task. Each word before the guess reduces the chance of a right answer, so the
policy gradient shortens the text. The words after it change nothing: their gradient is 0, whether
the guess was right or wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, finish, go_on

WORD = "um"
_GUESS = re.compile(rf"((?:{WORD} )*)(\d)")
FIRST = {"train": 0, "validation": 1, "test": 2}


@dataclass(frozen=True, kw_only=True)
class TalkOptions(EnvOptions):
    """What a word costs, and how many the imperfect author writes."""

    max_turns: int = 2
    """The guess, and what is said after it."""
    heard: float = 0.9
    """How often a listener who heard one more word hears the next."""
    words: float = 6.0
    """Words of the imperfect author, on average, before a guess and after a wrong one; after a
    right one it says half as many."""


class TalkTask(NamedTuple):
    """The two digits, and what only the environment knows."""

    digits: tuple[int, int]
    right: int
    patience: int


class _Tasks:
    def __init__(self, options: TalkOptions) -> None:
        self._options = options
        # Every third number, from another first one on: no question is drawn in two splits.
        self._numbers = range(FIRST[options.split], 3_000_000, 3)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> TalkTask:
        rng = random.Random(f"{self._options.seed}/{self._numbers[index]}")
        digits = rng.sample(range(10), 2)
        patience = 0
        while rng.random() < self._options.heard:
            patience += 1
        return TalkTask((digits[0], digits[1]), rng.choice(digits), patience)


@dataclass(slots=True)
class TalkState:
    """An episode's state."""

    task: TalkTask
    before: int = 0
    """Words before the guess."""
    right: bool = False


class TalkEnv(TextEnv[TalkTask, TalkState]):
    """Guesses between words; see the module's docstring."""

    Options = TalkOptions
    success_score = "right"
    reward_range = (-1.0, 1.0)

    def __init__(self, options: TalkOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _Tasks(options), services)

    def begin(self, task: TalkTask) -> str:
        """The question."""
        self.state = TalkState(task)
        return f"{task.digits[0]} or {task.digits[1]}?"

    def turn(self, action: Action) -> Reply:
        """Whether the guess was right; then the end."""
        state = self.state
        if self.turns_left > 1:
            guess = _GUESS.fullmatch(action.strip())
            state.before = action.split().count(WORD)
            heard = guess is not None and state.before <= state.task.patience
            state.right = heard and guess is not None and int(guess[2]) == state.task.right
            return go_on("Right." if state.right else "Wrong.")
        after = action.split().count(WORD)
        scores = {"right": float(state.right), "before": float(state.before), "after": float(after)}
        return finish({"guess": 1.0 if state.right else -1.0}, scores=scores)

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """Guesses, with a random number of words before and after."""
        most = cast(TalkOptions, self.options).words

        def say(observation: str) -> str:
            mean = most / 2 if observation == "Right." else most
            words = [WORD] * int(rng.geometric(1 / (1 + mean)) - 1)
            if "or" in observation:
                words.append(observation[0 if rng.random() < 0.5 else 5])
            return " ".join(words)

        return say
