"""Random episodes of every environment that runs by itself: equal starts, determinism, forks.

Each episode is played once and then again on a copy. At every turn of the second, a fork takes the
actions that follow and must live the same rest; another takes other actions and must leave the
episode alone. The slow test plays 10,000 of them.
"""

from __future__ import annotations

import pickle
import random

import pytest

import envs
from envs import StepResult, TextEnv
from envs.loop import loop_thread

ENVIRONMENTS = [
    ("countdown", {}),
    ("countdown", {"max_turns": 3, "use_all": True}),
    ("knights-knaves", {}),
    ("knights-knaves", {"people": 6, "depth": 3}),
    ("mastermind", {}),
    ("mastermind", {"pegs": 4, "colours": 6, "max_turns": 8, "information_reward": 1.0}),
    ("search-qa", {}),
    ("search-qa", {"hops": "2", "reward": "paper"}),
    ("sudoku", {}),
    ("sudoku", {"size": 9, "holes": 30, "max_turns": 3}),
]
NAMES = [f"{name} {options}" for name, options in ENVIRONMENTS]
JUNK = ("", "yes", "<answer></answer>", "<guess> 111 </guess>", "<search> of </search>", "<think>")


def some_actions(rng: random.Random, good: str) -> list[str]:
    """Up to eight actions: a good one, pieces of it, and what makes no sense anywhere."""
    made = []
    for _ in range(8):
        cut = rng.randrange(len(good) + 1)
        made.append(rng.choice([good, good, good[:cut], good[cut:] + good[:cut], rng.choice(JUNK)]))
    return made


async def take(env: TextEnv, actions: list[str]) -> list[StepResult]:
    """Steps until the episode or the actions end."""
    steps: list[StepResult] = []
    for action in actions:
        steps.append(await env.astep(action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


async def live_twice(env: TextEnv, rng: random.Random) -> int:
    """One random episode, checked as the module says; the number of its turns."""
    first, second = env.group(2)
    seed, task = rng.randrange(2**31), rng.randrange(len(env.tasks))
    starts = [await one.areset(seed=seed, options={"task": task}) for one in (first, second)]
    assert starts[0] == starts[1]
    if rng.random() < 0.3:
        steps, actions, policy = [], [], first.gold_policy()
        observation = starts[0][0]
        while not steps or not steps[-1].terminated:
            actions.append(policy(observation))
            steps.append(await first.astep(actions[-1]))
            observation = steps[-1].observation
        assert sum(step.reward for step in steps) == pytest.approx(env.reward_range[1])
    else:
        actions = some_actions(rng, first.gold_policy()(starts[0][0]))
        steps = await take(first, actions)
    for turn, expected in enumerate(steps):
        faithful, stray = await second.afork(), await second.afork(reseed=rng.randrange(99))
        restored = second.group(1)[0]
        await restored.arestore(pickle.loads(pickle.dumps(await second.asnapshot())))
        assert await take(faithful, actions[turn:]) == steps[turn:]
        await take(stray, some_actions(rng, actions[0]))
        assert await restored.astep(actions[turn]) == expected
        assert await second.astep(actions[turn]) == expected
        for copy in (faithful, stray, restored):
            await copy.aclose()
    await first.aclose()
    await second.aclose()
    return len(steps)


def check(name: str, options: dict, count: int) -> None:
    env = envs.make(name, **options)

    async def every() -> list[int]:
        async with env.open_services(env.options) as services:
            shared = envs.make(name, services=services, **options)
            return [await live_twice(shared, random.Random(f"{name} {i}")) for i in range(count)]

    turns = loop_thread.run(every())
    assert len(turns) == count
    # Where there are turns to take, some episodes are long and some are short.
    assert max(turns) <= env.options.max_turns
    assert env.options.max_turns == 1 or (max(turns) > 1 and min(turns) < max(turns))


@pytest.mark.parametrize(("name", "options"), ENVIRONMENTS, ids=NAMES)
def test_episodes_live_again(name, options):
    check(name, options, 40)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), ENVIRONMENTS, ids=NAMES)
def test_ten_thousand_episodes_live_again(name, options):
    check(name, options, 10_000 // len(ENVIRONMENTS))
