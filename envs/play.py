"""Plays one episode with a text policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.env import TextEnv
from envs.episode import StepResult
from envs.token_budget import without_budget

TextPolicy = Callable[[str], str]
"""A function from observation to action, for one episode."""


@dataclass(frozen=True, slots=True)
class Played:
    """A played episode."""

    first: str
    """The first observation."""
    info: dict[str, Any]
    """The ``info`` that ``reset`` returned."""
    actions: tuple[str, ...]
    steps: tuple[StepResult, ...]
    """The step result of each action, in order."""

    @property
    def reward(self) -> float:
        """The return: the sum of the steps' rewards."""
        return sum(step.reward for step in self.steps)


def gold_of(env: TextEnv[Any, Any]) -> TextPolicy:
    """The environment's gold policy; it does not see the prompt's token budget."""
    policy = env.gold_policy()
    return lambda observation: policy(without_budget(observation))


async def aplay(
    env: TextEnv[Any, Any], policy: TextPolicy, *, seed: int | None = None, task: int | None = None
) -> Played:
    """Play one episode with the asynchronous API."""
    options = None if task is None else {"task": task}
    first, info = await env.areset(seed=seed, options=options)
    observation, actions, steps = first, list[str](), list[StepResult]()
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        actions.append(policy(observation))
        # As in a rollout, other episodes take turns in between.
        await asyncio.sleep(0)
        steps.append(await env.astep(actions[-1]))
        observation = steps[-1].observation
    return Played(first, info, tuple(actions), tuple(steps))


def play(
    env: TextEnv[Any, Any], policy: TextPolicy, *, seed: int | None = None, task: int | None = None
) -> Played:
    """Play one episode with the synchronous API."""
    options = None if task is None else {"task": task}
    first, info = env.reset(seed=seed, options=options)
    observation, actions, steps = first, list[str](), list[StepResult]()
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        actions.append(policy(observation))
        steps.append(env.step(actions[-1]))
        observation = steps[-1].observation
    return Played(first, info, tuple(actions), tuple(steps))
