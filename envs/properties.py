"""Random episodes, lived again: equal starts, the same story from the same actions, forks apart.

``tests/envs/test_episode_properties.py`` lives a few of each environment, and
``benchmarks/env_properties.py`` ten thousand.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.checks.probe import AnyEnv
from envs.episode import StepResult
from envs.play import aplay, gold_of

JUNK = (
    "",
    "yes",
    "<answer></answer>",
    "<guess> 111 </guess>",
    "<search> of </search>",
    "<think>",
    "<code>x = globals().get('x', 1) * 2; print(x)</code>",
    "<calculator> 2 * (3 + 4) </calculator>",
    '<tool_call>{"name": "search", "arguments": {"query": "friend"}}</tool_call>',
    "\\boxed{7}",
)
"""What makes no sense in most places, and has a tool work in some."""
MOST_ACTIONS = 8


@dataclass(frozen=True, slots=True)
class Lived:
    """One random episode and its copies."""

    num_turns: int
    violations: list[str] = field(default_factory=list)
    """What did not hold, in words."""


def some_actions(rng: random.Random, good: str) -> list[str]:
    """Up to eight actions: a good one, pieces of it, and junk."""
    made = []
    for _ in range(MOST_ACTIONS):
        cut = rng.randrange(len(good) + 1)
        made.append(rng.choice([good, good, good[:cut], good[cut:] + good[:cut], rng.choice(JUNK)]))
    return made


async def taken(env: AnyEnv, actions: Sequence[str]) -> list[StepResult]:
    """Steps until the episode or the actions end; others have their turns in between."""
    steps: list[StepResult] = []
    for action in actions:
        await asyncio.sleep(0)
        steps.append(await env.astep(action))
        if steps[-1].done:
            break
    return steps


async def live_again(env: AnyEnv, rng: random.Random, has_gold: bool = True) -> Lived:
    """Live one random episode, and again with copies at every turn.

    - Members of a group start equal, whatever runs beside them.
    - The same actions lead to the same story, in another member, in a fork made at any turn, and
      from a pickled snapshot of any turn.
    - A fork that takes other actions, with another seed, leaves the episode alone.

    Args:
        env: is left alone; the episodes are copies'.
        rng: draws the task, the seed and the actions.
        has_gold: whether the gold policy knows every task; three episodes in ten are then its own.
    """
    first, second, third = made = env.group(3)
    seed, task = rng.randrange(2**31), rng.randrange(len(env.tasks))
    try:
        starts = []
        for one in made:
            starts.append(await one.areset(seed=seed, options={"task": task}))
            await asyncio.sleep(0)
        lived = Lived(0)
        if any(start != starts[0] for start in starts):
            lived.violations.append("members of a group start differently")
        good = gold_of(env)(starts[0][0]) if has_gold else ""
        if has_gold and rng.random() < 0.3:
            played = await aplay(first, gold_of(env), seed=seed, task=task)
            actions, steps = list(played.actions), list(played.steps)
            if abs(played.reward - env.reward_range[1]) > 1e-9:
                lived.violations.append(f"the gold policy earns {played.reward:g}")
        else:
            actions = some_actions(rng, good)
            steps = await taken(first, actions)
        if await taken(third, actions) != steps:
            lived.violations.append("the same actions lead another member elsewhere")
        for turn in range(len(steps)):
            found = await _copied(second, rng, actions[turn:], steps[turn:])
            lived.violations.extend(f"turn {turn}: {what}" for what in found)
        where = f"{env.env_id}, task {task}, seed {seed}"
        return Lived(len(steps), [f"{where}: {what}" for what in lived.violations])
    finally:
        for one in made:
            await one.aclose()


async def _copied(
    env: AnyEnv, rng: random.Random, actions: list[str], steps: list[StepResult]
) -> list[str]:
    """Copy a running episode, live on in the copies, then take one step of it; what is wrong."""
    wrong: list[str] = []
    faithful, stray = await env.afork(), await env.afork(reseed=rng.randrange(99))
    restored = env.group(1)[0]
    try:
        await restored.arestore(pickle.loads(pickle.dumps(await env.asnapshot())))
        if await taken(faithful, actions) != steps:
            wrong.append("a fork that takes the same actions lives another episode")
        await taken(stray, some_actions(rng, actions[0]))
        if await taken(restored, actions) != steps:
            wrong.append("a restored snapshot goes on differently")
        if await env.astep(actions[0]) != steps[0]:
            wrong.append("what forks did changes the episode that they came from")
    finally:
        for one in (faithful, stray, restored):
            await one.aclose()
    return wrong
