"""Environments of a user's own file, which collectors import."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, Reply, finish, go_on


@dataclass(frozen=True, kw_only=True)
class TalkOptions(EnvOptions):
    """What some tasks do."""

    max_turns: int = 3
    wait_s: float = 0.0
    """Seconds of a turn."""
    deadly: int = -1
    """Task that ends its process."""
    failing: int = -1
    """Task whose turns fail."""
    blocking: int = -1
    """Task that holds its process's event loop."""


class Talk(TextEnv[int, int]):
    """Counts the letters of what is said, and draws a number."""

    Options = TalkOptions
    forkable = True

    def __init__(self, options, services=None):
        super().__init__(options, range(1000), services)

    def begin(self, task):
        self.state = task
        return f"task {task}: {self.np_random.integers(1000)}"

    async def turn(self, action: Action) -> Reply:
        options = self.options
        await asyncio.sleep(options.wait_s)
        if self.state == options.deadly:
            os._exit(3)
        if self.state == options.failing:
            raise EnvFailure("it is out of order", retryable=False)
        if self.turns_left == 1:
            return finish({"letters": len(action) / 100})
        return go_on(f"{len(action)} letters, {self.np_random.integers(1000)}", {"letters": 0.0})


class Refusing(Talk):
    """Its services cannot be opened."""

    @classmethod
    def open_services(cls, options):
        raise EnvFailure("the index is missing: build it", retryable=False)
