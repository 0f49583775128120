"""The same moves through an adapter and through the package's own loop, as comparable records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from envs.env import TextEnv


class Seen(NamedTuple):
    """What the policy reads at one point of an episode, and what the point is worth."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


def ours(
    env: TextEnv[Any, Any],
    moves: Iterable[str],
    task: int = 0,
    read: Callable[[str], str] = lambda observation: observation,
) -> list[Seen]:
    """An episode of an adapter: the first observation and each step, until the end.

    ``read`` maps an observation to what the policy has read.
    """
    seen = [Seen(read(env.reset(seed=0, options={"task": task})[0]))]
    for move in moves:
        if seen[-1].terminated or seen[-1].truncated:
            break
        observation, *rest = env.step(move)[:4]
        seen.append(Seen(read(observation), *rest))
    return seen


def theirs(
    env: Any,
    moves: Iterable[Any],
    seed: int,
    text: Callable[[Any, Any], str] = lambda observation, info: observation,
) -> list[Seen]:
    """The same by the loop of Gymnasium, GEM and MiniGrid; ``text`` reads observation and info.

    An end that is both is terminated: an episode of ours has one end.
    """
    seen = [Seen(text(*env.reset(seed=seed)))]
    for move in moves:
        if seen[-1].terminated or seen[-1].truncated:
            break
        observation, reward, terminated, truncated, info = env.step(move)
        seen.append(Seen(text(observation, info), reward, terminated, truncated and not terminated))
    return seen
