"""The rules of :func:`envs.check_env`: each yields what breaks it; one that raises is broken, too.

They act through copies of the environment (``env.group``); the environment itself is left alone.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from itertools import combinations
from typing import Any, cast

from envs.datasets import SPLITS
from envs.episode import NotForkable, OrderError, StepResult
from envs.loop import loop_thread
from envs.play import Played, aplay, gold_of, play
from envs.probe import AnyEnv, Probe, global_generators

BEAT_S = 0.005
"""How often the heartbeat asks whether the loop is free, in seconds."""
MOST_TRIES = 5
"""Times that an episode is played before it counts as keeping the loop from others."""
SPLIT_SAMPLE = 64
"""Most tasks of a split that are compared with those of the others."""


def _types(probe: Probe) -> Iterator[str]:
    """Options, observations, rewards and info are what the contract says."""
    env = probe.env
    options: Any = env.options
    if not (is_dataclass(options) and isinstance(options, env.Options)):
        yield f"options are {type(options).__name__}, not the class's Options"
    elif not vars(type(options))["__dataclass_params__"].frozen:
        yield f"{type(options).__name__} must be a frozen dataclass"
    build: Any = type(env)
    build(options, services=None).close()
    for task in probe.tasks:
        played = probe.gold(task)
        first: Any = played.first
        if not isinstance(first, str):
            yield f"task {task}: the first observation is {first!r}, not a text"
        replies: list[Any] = [*played.steps]
        for step in replies:
            if not isinstance(step, StepResult) or not isinstance(step.observation, str):
                yield f"task {task}: a step returned {step!r}, not a StepResult with a text"


def _determinism(probe: Probe) -> Iterator[str]:
    """Seed and task decide everything; Python's and NumPy's global generators are left alone."""
    for task in probe.tasks:
        for name, policy in {"gold": None, **probe.spam()}.items():
            with global_generators() as used:
                runs = [probe.play(policy or gold_of(probe.env), task) for _ in range(2)]
            if runs[0] != runs[1]:
                yield f"task {task}, {name}: two episodes with the same seed and task differ"
            for generator in used:
                yield f"task {task}, {name}: {generator} is used or seeded; use self.np_random"
    with probe.copies(2) as [one, other]:
        drawn = [[env.reset(seed=seed) for seed in range(8)] for env in (one, other)]
    if drawn[0] != drawn[1]:
        yield "two resets with the same seed and no task differ"
    if len(probe.env.tasks) >= 8 and len({info["task"] for _, info in drawn[0]}) == 1:
        yield "eight seeds all draw the same task"


def _splits(probe: Probe) -> Iterator[str]:
    """No task of one split is asked in another, as far as a sample of each shows."""
    asked = {split: questions for split in SPLITS if (questions := _questions(probe, split))}
    for one, other in combinations(asked, 2):
        # Where first observations tell a split's tasks apart, they are the tasks; where they do
        # not ("Guess my number."), tasks are equal if they are also written the same.
        start = 1 if _tells_apart(asked[one]) and _tells_apart(asked[other]) else 0
        known = {question[start:]: index for index, question in asked[one].items()}
        again = [
            (known[question[start:]], index, question[1])
            for index, question in asked[other].items()
            if question[start:] in known
        ]
        if again:
            first, second, text = again[0]
            yield (
                f"task {first} of {one} is task {second} of {other} ({text[:60]!r}), and so for "
                f"{len(again)} of {len(asked[other])}: choose tasks by options.split, and what is "
                f"asked by the task alone"
            )


def _tells_apart(questions: Mapping[int, tuple[str, str]]) -> bool:
    """Whether no two tasks have the same first observation."""
    return len({first for _, first in questions.values()}) == len(questions) > 1


def _questions(probe: Probe, split: str) -> dict[int, tuple[str, str]]:
    """Some tasks of a split: index -> (the task, as its ``repr``; its first observation)."""
    env, build = probe.env, cast(Any, type(probe.env))
    try:
        twin: AnyEnv = build(replace(env.options, split=split), services=None)
    except ValueError:
        return {}  # A data set may have no such split.
    twin.env_id = env.env_id
    twin._lease = env._lease.share()  # The same services serve every split.
    count, half = len(twin.tasks), SPLIT_SAMPLE // 2
    chosen = sorted({*range(min(count, half)), *(i * count // half for i in range(half))})
    try:
        # In each split the same seeds: what a generator decides, and not the task, is equal then.
        return {
            index: (repr(twin.tasks[index]), twin.reset(seed=place, options={"task": index})[0])
            for place, index in enumerate(chosen)
        }
    finally:
        twin.close()


def _no_leak(probe: Probe) -> Iterator[str]:
    """An episode does not know what was played before on the same environment."""
    for task in probe.tasks:
        for name, policy in probe.spam().items():
            with probe.copies(1) as [used]:
                loop_thread.run(aplay(used, policy, seed=probe.seed + 1, task=probe.tasks[0]))
                after = loop_thread.run(aplay(used, gold_of(used), seed=probe.seed, task=task))
            if after != probe.gold(task):
                yield f"task {task}: an episode of {name} changes the next one"


def _group(probe: Probe) -> Iterator[str]:
    """Copies start equal and do not touch one another while they run."""

    async def interleaved(quiet: AnyEnv, loud: AnyEnv, task: int) -> list[StepResult]:
        await quiet.areset(seed=probe.seed, options={"task": task})
        steps, over = list[StepResult](), True
        for action in gold.actions:
            if over:
                await loud.areset(seed=probe.seed + 1)
            reply = await loud.astep("")
            over = reply.terminated or reply.truncated
            steps.append(await quiet.astep(action))
        return steps

    for task in probe.tasks:
        with probe.copies(3) as members:
            starts = [env.reset(seed=probe.seed, options={"task": task}) for env in members]
        if any(start != starts[0] for start in starts):
            yield f"task {task}: members of a group start differently"
        gold = probe.gold(task)
        with probe.copies(2) as [quiet, loud]:
            if loop_thread.run(interleaved(quiet, loud, task)) != list(gold.steps):
                yield f"task {task}: an episode changes another that runs beside it"


def _order(probe: Probe) -> Iterator[str]:
    """A step before the first reset or after the end raises OrderError, in both faces."""

    def refused(env: AnyEnv, when: str) -> Iterator[str]:
        faces: dict[str, Callable[[], StepResult]] = {
            "step": lambda: env.step(""),
            "astep": lambda: loop_thread.run(env.astep("")),
        }
        for face, step in faces.items():
            try:
                step()
            except OrderError:
                continue
            yield f"{face} {when} does not raise OrderError"

    with probe.copies(1) as [env]:
        yield from refused(env, "before the first reset")
        play(env, gold_of(env), seed=probe.seed, task=probe.tasks[0])
        yield from refused(env, "after the episode's end")


def _gold(probe: Probe) -> Iterator[str]:
    """The gold policy earns the most there is, and ends the episode itself."""
    best = probe.env.reward_range[1]
    for task in probe.tasks:
        played = probe.gold(task)
        if not math.isclose(played.reward, best, abs_tol=1e-9):
            yield f"task {task}: earns {played.reward:g}, where reward_range promises {best:g}"
        if not played.steps[-1].terminated:
            yield f"task {task}: is cut short ({played.steps[-1].info['stop_reason']})"


def _floor(probe: Probe) -> Iterator[str]:
    """Who knows nothing earns no more than reward_floor."""
    for task in probe.tasks:
        for name, policy in probe.spam().items():
            reward = probe.play(policy, task).reward
            if not reward <= probe.env.reward_floor:
                yield f"task {task}: {name} earns {reward:g}, above {probe.env.reward_floor:g}"


def _rewards(probe: Probe) -> Iterator[str]:
    """Named rewards add up, turn by turn; returns are finite and in the declared range."""
    low, high = probe.env.reward_range
    for task in probe.tasks:
        for name, policy in {"gold": gold_of(probe.env), **probe.spam()}.items():
            played = probe.play(policy, task)
            for step in played.steps:
                total = sum(step.info["rewards"].values())
                if not math.isclose(total, step.reward, abs_tol=1e-9):
                    yield f"task {task}, {name}: {step.info['rewards']} is not {step.reward:g}"
            if not low - 1e-9 <= played.reward <= high + 1e-9:
                yield f"task {task}, {name}: {played.reward:g} is outside [{low:g}, {high:g}]"


def _info(probe: Probe) -> Iterator[str]:
    """Info is plain data: it pickles, and comes back equal."""
    for task in probe.tasks:
        played = probe.gold(task)
        for info in (played.info, *(step.info for step in played.steps)):
            if pickle.loads(pickle.dumps(info)) != info:
                yield f"task {task}: info changes in a pickle: {info}"


def _copies_in_mid_episode(probe: Probe) -> Iterator[str]:
    """A fork and a restored snapshot go on as the original does, and leave it alone."""
    if not probe.env.forkable:
        with probe.copies(1) as [env]:
            env.reset(seed=probe.seed)
            try:
                env.fork().close()
            except NotForkable:
                return
        yield "forkable is False, yet fork does not raise NotForkable"
        return
    for task in probe.tasks:
        gold = probe.gold(task)
        half = len(gold.steps) // 2
        fork, restored, original = loop_thread.run(_three_ways(probe, gold, half))
        for name, steps in (("fork", fork), ("restored snapshot", restored)):
            if steps != list(gold.steps[half:]):
                yield f"task {task}: a {name} goes on differently"
        if original != list(gold.steps[half:]):
            yield f"task {task}: a fork's actions change the original"


async def _three_ways(probe: Probe, gold: Played, half: int) -> list[list[StepResult]]:
    """The rest of a gold episode: in a fork, from a pickled snapshot, and in the original."""
    original, restored = made = probe.env.group(2)
    try:
        await original.areset(seed=probe.seed, options={"task": gold.info["task"]})
        for action in gold.actions[:half]:
            await original.astep(action)
        await restored.arestore(pickle.loads(pickle.dumps(await original.asnapshot())))
        fork = await original.afork()
        made.append(fork)
        rest = gold.actions[half:]
        return [[await env.astep(action) for action in rest] for env in (fork, restored, original)]
    finally:
        for env in made:
            await env.aclose()


def _faces(probe: Probe) -> Iterator[str]:
    """Gymnasium's face and the asynchronous one do the same."""
    for task in probe.tasks:
        for name, policy in {"gold": None, **probe.spam()}.items():
            with probe.copies(1) as [env]:
                there = play(env, policy or gold_of(env), seed=probe.seed, task=task)
            if there != probe.play(policy or gold_of(probe.env), task):
                yield f"task {task}, {name}: reset/step and areset/astep differ"


def _free_loop(probe: Probe) -> Iterator[str]:
    """Nothing keeps the event loop from others for long."""
    worst, where = 0.0, ""
    for task in probe.tasks:
        for name in ("gold", *probe.spam()):
            block = math.inf
            # A machine that is busy with other work delays a heartbeat as well, but hardly in each
            # of several tries of the same few milliseconds.
            for _ in range(MOST_TRIES):
                block = min(block, loop_thread.run(_longest_block(probe, task, name)))
                if block <= probe.max_block_s:
                    break
            if block > worst:
                worst, where = block, f"task {task}, {name}"
    probe.longest_block_s = worst
    if worst > probe.max_block_s:
        yield (
            f"{where}: the event loop was not free for {worst * 1000:.0f} ms, in each of "
            f"{MOST_TRIES} episodes: mark plain functions that take long with blocking = True, or "
            f"await inside async ones"
        )


async def _longest_block(probe: Probe, task: int, name: str) -> float:
    """The longest delay of a heartbeat during one episode, in seconds."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            longest = max(longest, time.perf_counter() - before - BEAT_S)

    env = probe.env.group(1)[0]
    policy = gold_of(env) if name == "gold" else probe.spam()[name]
    heart = asyncio.create_task(beat())
    try:
        # So that the heart beats before the episode and after it.
        await asyncio.sleep(2 * BEAT_S)
        await aplay(env, policy, seed=probe.seed, task=task)
        await asyncio.sleep(2 * BEAT_S)
    finally:
        heart.cancel()
        await env.aclose()
    return longest


def _close(probe: Probe) -> Iterator[str]:
    """Closing twice is harmless, and closes nothing for others."""
    with probe.copies(1) as [env]:
        before = probe.gold(probe.tasks[0])
        env.reset(seed=probe.seed)
        env.close()  # And again, as every copy is.
    if probe.gold(probe.tasks[0]) != before:
        yield "after one copy was closed twice, others play differently"


RULES: dict[str, Callable[[Probe], Iterator[str]]] = {
    "types": _types,
    "determinism": _determinism,
    "splits": _splits,
    "no leak": _no_leak,
    "group": _group,
    "order": _order,
    "gold policy": _gold,
    "reward floor": _floor,
    "rewards": _rewards,
    "info": _info,
    "copies": _copies_in_mid_episode,
    "faces": _faces,
    "free loop": _free_loop,
    "close": _close,
}
"""Every rule by name."""
