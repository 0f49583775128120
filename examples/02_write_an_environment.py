"""An environment of your own: guess a number with hints. Written once, checked, played by group.

Run with: python examples/02_write_an_environment.py

Prints:
    CheckReport(env_id='guess-v0', ...
    [{...'task': ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import envs

FIRST = {"train": 1, "validation": 2, "test": 3}


@dataclass(frozen=True, kw_only=True)
class GuessOptions(envs.EnvOptions):
    """How hard it is."""

    max_turns: int = 7
    """Guesses."""
    highest: int = 100
    """The number is between 1 and this."""


class GuessEnv(envs.TextEnv[int, int]):
    """The task is the number, and so is the state."""

    Options = GuessOptions

    def __init__(self, options: GuessOptions, services: Mapping[str, Any] | None = None) -> None:
        # Every third number, from another first one on: no number is in two splits.
        super().__init__(options, range(FIRST[options.split], options.highest + 1, 3), services)
        self.highest = options.highest

    def begin(self, task: int) -> str:
        """Ask for the first guess."""
        self.state = task
        return f"I think of a number from 1 to {self.highest}. Guess it."

    def turn(self, action: envs.Action) -> envs.Reply:
        """Say higher, lower or right."""
        if not action.strip().isdigit():
            return envs.go_on("Write a number.")
        if int(action) == self.state:
            return envs.finish({"right": 1.0}, "Right.")
        return envs.go_on("Higher." if int(action) < self.state else "Lower.")

    def gold_policy(self) -> Callable[[str], str]:
        """Halve what is left."""
        low, high, last = 1, self.highest, 0

        def act(observation: str) -> str:
            nonlocal low, high, last
            low = last + 1 if observation == "Higher." else low
            high = last - 1 if observation == "Lower." else high
            last = (low + high) // 2
            return str(last)

        return act


def main() -> None:
    envs.register("guess-v0", GuessEnv)
    env = envs.make("guess")
    print(envs.check_env(env))
    group = env.group(4)
    print([member.reset(seed=3)[1] for member in group])


if __name__ == "__main__":
    main()
