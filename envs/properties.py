"""Checks of properties with random episodes: equal starts, equal results, independent forks.

``tests/envs/test_episode_properties.py`` checks a few episodes of each environment, and
``benchmarks/environments/properties.py`` ten thousand.
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
"""Actions without meaning in most environments; some of them call tools."""
MAX_ACTIONS = 8


@dataclass(frozen=True, slots=True)
class PropertyReport:
    """The result of one random episode and its copies."""

    num_turns: int
    violations: list[str] = field(default_factory=list)
    """Descriptions of the properties that did not hold."""


def some_actions(rng: random.Random, good: str) -> list[str]:
    """Eight random actions: the good action, pieces of it, and junk."""
    made = []
    for _ in range(MAX_ACTIONS):
        cut = rng.randrange(len(good) + 1)
        made.append(rng.choice([good, good, good[:cut], good[cut:] + good[:cut], rng.choice(JUNK)]))
    return made


async def taken(env: AnyEnv, actions: Sequence[str]) -> list[StepResult]:
    """Take actions until the episode ends or no action is left, and return the step results.

    Other episodes in the same event loop can run before each action.
    """
    steps: list[StepResult] = []
    for action in actions:
        await asyncio.sleep(0)
        steps.append(await env.astep(action))
        if steps[-1].done:
            break
    return steps


async def live_again(env: AnyEnv, rng: random.Random, has_gold: bool = True) -> PropertyReport:
    """Play one random episode, then play it again and compare copies made at every turn.

    The following properties must hold:

    - Members of a group start equal, even if other episodes run at the same time.
    - Equal actions have equal results in another member, in a fork from any turn, and from a
      pickled snapshot of any turn.
    - A fork with other actions and another seed does not change the episode.

    Args:
        env: the environment, which stays unchanged; copies play the episodes.
        rng: draws the task, the seed and the actions.
        has_gold: whether the gold policy solves every task. If so, it plays three of ten episodes.
    """
    first, second, third = made = env.group(3)
    seed, task = rng.randrange(2**31), rng.randrange(len(env.tasks))
    try:
        starts = []
        for one in made:
            starts.append(await one.areset(seed=seed, options={"task": task}))
            await asyncio.sleep(0)
        report = PropertyReport(0)
        if any(start != starts[0] for start in starts):
            report.violations.append("members of a group start differently")
        good = gold_of(env)(starts[0][0]) if has_gold else ""
        if has_gold and rng.random() < 0.3:
            played = await aplay(first, gold_of(env), seed=seed, task=task)
            actions, steps = list(played.actions), list(played.steps)
            if abs(played.reward - env.reward_range[1]) > 1e-9:
                report.violations.append(f"the gold policy earns {played.reward:g}")
        else:
            actions = some_actions(rng, good)
            steps = await taken(first, actions)
        if await taken(third, actions) != steps:
            report.violations.append("equal actions have other results in another member")
        for turn in range(len(steps)):
            found = await _copied(second, rng, actions[turn:], steps[turn:])
            report.violations.extend(f"turn {turn}: {what}" for what in found)
        where = f"{env.env_id}, task {task}, seed {seed}"
        return PropertyReport(len(steps), [f"{where}: {what}" for what in report.violations])
    finally:
        for one in made:
            await one.aclose()


async def _copied(
    env: AnyEnv, rng: random.Random, actions: list[str], steps: list[StepResult]
) -> list[str]:
    """Play copies of a running episode, then take one step in the episode itself.

    Returns the violations of :func:`live_again`'s properties.
    """
    wrong: list[str] = []
    faithful, stray = await env.afork(), await env.afork(reseed=rng.randrange(99))
    restored = env.group(1)[0]
    try:
        await restored.arestore(pickle.loads(pickle.dumps(await env.asnapshot())))
        if await taken(faithful, actions) != steps:
            wrong.append("a fork with equal actions has other results")
        await taken(stray, some_actions(rng, actions[0]))
        if await taken(restored, actions) != steps:
            wrong.append("a restored snapshot with equal actions has other results")
        if await env.astep(actions[0]) != steps[0]:
            wrong.append("actions of forks change the original episode")
    finally:
        for one in (faithful, stray, restored):
            await one.aclose()
    return wrong
