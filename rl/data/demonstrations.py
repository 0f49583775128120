"""Demonstrations: conversations that an environment's scripted policy plays, for imitation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

import envs
from envs.env import EnvOptions
from envs.token_budget import without_budget
from rl.data.conversations import Conversation, Exchange


class NoDemonstrations(ValueError):
    """Raised when an environment has no demonstrations. Callers add advice to the message."""


@runtime_checkable
class Demonstrated(Protocol):
    """An environment with recorded conversations instead of a scripted policy."""

    def conversations(self, tasks: Sequence[int], seed: int) -> list[Conversation]:
        """The conversations of ``tasks``.

        Conversations from a file have no tasks; then all are returned.
        """
        ...


async def demonstrate(
    env_id: str,
    options: EnvOptions,
    services: Mapping[str, Any],
    tasks: Sequence[int],
    seed: int,
    concurrency: int = 32,
    count: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Conversation]:
    """Play one episode of each task with the environment's demonstrator, which sometimes errs.

    Each role of an episode gives one conversation. A :class:`Demonstrated` environment plays
    nothing, and returns its recorded conversations.

    Args:
        env_id: the environment's full id.
        options: the environment's options.
        services: the services that the episodes share.
        tasks: indices into the options' split.
        seed: seed of the demonstrator's errors.
        concurrency: largest number of concurrent episodes.
        count: called at the end of each episode with the word "demonstrations", the number of
            ended episodes, and the number of tasks.

    Raises:
        NoDemonstrations: the environment has no demonstrator.
    """
    if issubclass(envs.env_type(env_id), Demonstrated):
        demonstrated = envs.make_from(env_id, options, services)
        assert isinstance(demonstrated, Demonstrated)
        return demonstrated.conversations(tasks, seed)
    permits = asyncio.Semaphore(concurrency)
    ended = itertools.count(1)

    async def one(position: int, task: int) -> list[Conversation]:
        async with permits:
            rng = np.random.default_rng([seed, position])
            conversations = await _episode(env_id, options, services, task, rng)
            count("demonstrations", next(ended), len(tasks))
            return conversations

    played = await asyncio.gather(*(one(i, task) for i, task in enumerate(tasks)))
    return [conversation for conversations in played for conversation in conversations]


async def _episode(
    env_id: str,
    options: EnvOptions,
    services: Mapping[str, Any],
    task: int,
    rng: np.random.Generator,
) -> list[Conversation]:
    env = envs.make_from(env_id, options, services)
    observation, _ = await env.areset(seed=int(rng.integers(2**31)), options={"task": task})
    try:
        demonstrator = env.demonstrator(rng)
    except NotImplementedError as error:
        raise NoDemonstrations(
            f"{env_id} has no demonstrator to imitate: write {type(env).__name__}.demonstrator"
        ) from error
    spoken: dict[str, list[Exchange]] = {}
    rules: dict[str, str | None] = {}
    tools: dict[str, tuple[Mapping[str, Any], ...]] = {}
    # The last action needs no step: the demonstrator would not read the result.
    for turn in range(options.max_turns):
        action = demonstrator(without_budget(observation))
        said = spoken.setdefault(env.role, [])
        halted = bool(env.stop) and action.endswith(env.stop)
        continues = bool(said) and env.continues
        said.append(Exchange(observation, action, not halted, continues, prefill=env.prefill))
        rules.setdefault(env.role, env.system_prompt)
        tools.setdefault(env.role, tuple(env.tool_schemas))
        if turn + 1 < options.max_turns:
            result = await env.astep(action)
            if result.terminated or result.truncated:
                break
            observation = result.observation
    await env.aclose()
    return [
        Conversation(tuple(exchanges), rules[role], tools=tools[role])
        for role, exchanges in spoken.items()
    ]
