"""``mastermind-v0``: guess a secret code; the environment answers each guess.

Each turn is a guess. The answer has two counts: black, the right digits in the right
position, and white, the right digits in a wrong position::

    The code has 3 digits from 1 to 5. 10 guesses left.
    <guess> 122 </guess>
    1 black, 0 white. 9 guesses left.
    <guess> 134 </guess>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, Reply, StopReason, cut, finish, go_on
from envs.logic.mastermind.codes import (
    MAX_CODES,
    MAX_COLOURS,
    MAX_PEGS,
    MIN_CODES,
    Codes,
    CodeTasks,
    Game,
    feedback,
    game,
    num_codes,
    parse_guess,
)
from envs.logic.mastermind.rows import load_codes
from envs.logic.mastermind.scripted_policies import GoldPolicy, PatientPolicy
from envs.options import Card

INSTRUCTIONS = (
    "Find the secret code. Write each guess between <guess> and </guess>. You are told how many of "
    "its digits are right and in their place (black), and how many more are right but elsewhere "
    "(white)."
)


@dataclass(frozen=True, kw_only=True)
class MastermindOptions(RowOptions):
    """Options of the secret code, the rules and the reward."""

    max_turns: int = 10
    """Maximum number of guesses, 10 as in the board game. An unreadable guess counts as one."""
    pegs: int = 3
    """Number of digits of the code, from 2 to 6."""
    colours: int = 5
    """The largest digit, from 2 to 9. The settings together must allow 100 to 10000 codes."""
    repeats: bool = True
    """Whether a code may hold a digit twice."""
    information_reward: float = 0.0
    """Total reward for narrowing down the code. A guess earns the share log(possible codes before
    / after) / log(all codes) of it; finding the code earns the rest."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("pegs", MAX_PEGS), ("colours", MAX_COLOURS)):
            if not 2 <= getattr(self, name) <= most:
                raise ValueError(f"{name} ({getattr(self, name)}) must be from 2 to {most}")
        count = num_codes(self.pegs, self.colours, self.repeats)
        if not MIN_CODES <= count <= MAX_CODES:
            raise ValueError(
                f"pegs ({self.pegs}) and colours ({self.colours}) make {count} codes: there must "
                f"be from {MIN_CODES} to {MAX_CODES}"
            )
        if self.information_reward < 0:
            raise ValueError(f"information_reward ({self.information_reward}) must be >= 0")


@dataclass(slots=True)
class MastermindState:
    """An episode's state."""

    secret: str
    left: Codes
    """The codes that are still possible."""
    invalid: int = 0
    """Number of consecutive unreadable guesses."""


class MastermindEnv(TextEnv[str, MastermindState]):
    """Secret codes to guess; see the module's docstring for the protocol."""

    Options = MastermindOptions
    card = Card(
        agent="finds a secret code by guessing",
        reward="1 if found; optionally more for informative guesses",
    )
    success_score = "solved"

    def __init__(
        self, options: MastermindOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        self._game = _game(options)
        super().__init__(options, _tasks(options), services)
        self.reward_range = (0.0, 1.0 + options.information_reward)
        self.system_prompt = INSTRUCTIONS if options.instructions else None

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[str] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(MastermindOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_codes(chosen.tasks, chosen.columns, _game(chosen))

    def begin(self, task: str) -> str:
        """Describe the code's size and the number of guesses."""
        self.state = MastermindState(task, self._game.everything())
        twice = "" if self._game.repeats else ", none of them twice"
        return (
            f"The code has {self._game.pegs} digits from 1 to {self._game.colours}{twice}. "
            f"{self._guesses(self.turns_left)}"
        )

    def turn(self, action: Action) -> Reply:
        """Answer the guess, or end the episode."""
        guess = parse_guess(action.content)
        if guess is None or not self._game.is_guess(guess):
            return self._unreadable()
        state, rules = self.state, self._game
        said = feedback(guess, state.secret)
        before = len(state.left)
        state.left, state.invalid = rules.possible(guess, said, state.left), 0
        gain = math.log(before / len(state.left)) / math.log(len(rules.codes))
        solved = guess == state.secret
        rewards = {"solved": float(solved)}
        weight = cast(MastermindOptions, self.options).information_reward
        if weight:
            rewards["information"] = weight * gain
        scores = {"solved": float(solved), "information": self._information()}
        if solved:
            return finish(rewards, scores=scores)
        message = f"{said.black} black, {said.white} white. {self._guesses(self.turns_left - 1)}"
        return go_on(message, rewards, scores=scores)

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the logarithm of the number of codes."""
        return math.log(len(self._game.codes) / MIN_CODES) / math.log(MAX_CODES / MIN_CODES)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that narrows down the codes. Five guesses suffice for the default settings."""
        return GoldPolicy()

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that changes one digit after another, and overlooks many answers."""
        return PatientPolicy(rng)

    def _unreadable(self) -> Reply:
        self.state.invalid += 1
        scores = {"solved": 0.0, "information": self._information()}
        if self.state.invalid >= self.max_invalid_actions:
            return cut(StopReason.INVALID_ACTIONS, scores=scores)
        message = (
            f"No guess could be read: write {self._game.pegs} digits from 1 to "
            f"{self._game.colours} between <guess> and </guess>. "
            f"{self._guesses(self.turns_left - 1)}"
        )
        return go_on(message, scores=scores)

    def _information(self) -> float:
        """The known share of the code's information: 0 at the start, 1 when one code is left."""
        return 1.0 - math.log(len(self.state.left)) / math.log(len(self._game.codes))

    @staticmethod
    def _guesses(count: int) -> str:
        return f"{count} guess{'' if count == 1 else 'es'} left."


def _game(options: MastermindOptions) -> Game:
    return game(options.pegs, options.colours, options.repeats)


def _tasks(options: MastermindOptions) -> Tasks[str]:
    data = MastermindEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return CodeTasks(options.split, options.seed, _game(options))
