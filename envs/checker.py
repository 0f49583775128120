"""``envs.check_env``: does an environment keep the contract of :class:`envs.TextEnv`?

Each rule is a function below that yields what breaks it. A rule that raises is broken as well. The
rules act through copies of the environment (``env.group``); the environment itself is left alone.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

from envs.env import TextEnv
from envs.episode import NotForkable, OrderError, StepResult
from envs.loop import loop_thread
from envs.play import Played, TextPolicy, aplay, play

AnyEnv = TextEnv[Any, Any]
BEAT_S = 0.005
"""How often the heartbeat asks whether the loop is free, in seconds."""


class CheckFailed(Exception):
    """Raised when an environment breaks the contract; says everything that is wrong with it."""

    def __init__(self, env_id: str, violations: Sequence[str]) -> None:
        lines = "".join(f"\n- {violation}" for violation in violations)
        super().__init__(f"{env_id} breaks the contract of environments:{lines}")
        self.violations = tuple(violations)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was checked of an environment that keeps the contract."""

    env_id: str
    rules: tuple[str, ...]
    """Names of the rules that hold."""
    tasks: tuple[int, ...]
    """The tasks that were played."""
    longest_block_s: float
    """The longest time for which the event loop was not free, in seconds; the best of 3 rounds."""


class _Probe:
    """An environment under examination, and what is known of it so far."""

    def __init__(self, env: AnyEnv, tasks: tuple[int, ...], seed: int, max_block_s: float) -> None:
        self.env, self.tasks, self.seed, self.max_block_s = env, tasks, seed, max_block_s
        self.longest_block_s = math.inf

    @contextmanager
    def copies(self, count: int) -> Iterator[list[AnyEnv]]:
        """Fresh copies, closed afterwards."""
        made = self.env.group(count)
        try:
            yield made
        finally:
            for one in made:
                one.close()

    def play(self, policy: TextPolicy, task: int) -> Played:
        """An episode on a copy of its own, through the asynchronous face."""
        with self.copies(1) as [env]:
            return loop_thread.run(aplay(env, policy, seed=self.seed, task=task))

    def gold(self, task: int) -> Played:
        """An episode of the gold policy."""
        return self.play(self.env.gold_policy(), task)

    def spam(self) -> dict[str, TextPolicy]:
        """Policies that know nothing, by name."""
        letters = np.random.default_rng(self.seed).integers(32, 127, size=200)
        noise = "".join(chr(letter) for letter in letters)
        return {
            "empty text": lambda _: "",
            "random text": lambda _: noise,
            "the observation repeated": lambda observation: observation,
            "a bare stop string": lambda _: "".join(self.env.stop),
            "many words": lambda _: "yes no 0 1 " * 100,
        }


def check_env(
    env: AnyEnv, *, num_tasks: int = 3, seed: int = 0, max_block_s: float = 0.1
) -> CheckReport:
    """Hold an environment to its contract.

    Args:
        env: as it comes from ``envs.make``; its services are opened if nobody injected them, and
            stay open until it is closed.
        num_tasks: how many tasks are played, spread over its split.
        seed: of the episodes.
        max_block_s: how long a turn may keep the event loop from others, in seconds.

    Raises:
        CheckFailed: a rule is broken; lists every one that is.
        ValueError: ``num_tasks`` is less than 1.
    """
    if num_tasks < 1:
        raise ValueError(f"num_tasks ({num_tasks}) must be >= 1")
    count = len(env.tasks)
    tasks = tuple(sorted({i * count // num_tasks for i in range(num_tasks)}))
    probe = _Probe(env, tasks, seed, max_block_s)
    violations: list[str] = []
    for name, rule in RULES.items():
        # The environment is foreign code: whatever it raises is a finding.
        try:
            violations += [f"{name}: {found}" for found in rule(probe)]
        except Exception as error:
            violations.append(f"{name}: raised {type(error).__name__}: {error}")
    env_id = env.env_id or type(env).__name__
    if violations:
        raise CheckFailed(env_id, violations)
    return CheckReport(env_id, tuple(RULES), tasks, probe.longest_block_s)


# ---- the rules -----------------------------------------------------------------------------


def _types(probe: _Probe) -> Iterator[str]:
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


def _determinism(probe: _Probe) -> Iterator[str]:
    """Seed and task decide everything; Python's and NumPy's global generators are left alone."""
    for task in probe.tasks:
        for name, policy in {"gold": None, **probe.spam()}.items():
            with _global_generators() as used:
                runs = [probe.play(policy or probe.env.gold_policy(), task) for _ in range(2)]
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


def _no_leak(probe: _Probe) -> Iterator[str]:
    """An episode does not know what was played before on the same environment."""
    for task in probe.tasks:
        for name, policy in probe.spam().items():
            with probe.copies(1) as [used]:
                loop_thread.run(aplay(used, policy, seed=probe.seed + 1, task=probe.tasks[0]))
                after = loop_thread.run(aplay(used, used.gold_policy(), seed=probe.seed, task=task))
            if after != probe.gold(task):
                yield f"task {task}: an episode of {name} changes the next one"


def _group(probe: _Probe) -> Iterator[str]:
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


def _order(probe: _Probe) -> Iterator[str]:
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
        play(env, env.gold_policy(), seed=probe.seed, task=probe.tasks[0])
        yield from refused(env, "after the episode's end")


def _gold(probe: _Probe) -> Iterator[str]:
    """The gold policy earns the most there is, and ends the episode itself."""
    best = probe.env.reward_range[1]
    for task in probe.tasks:
        played = probe.gold(task)
        if not math.isclose(played.reward, best, abs_tol=1e-9):
            yield f"task {task}: earns {played.reward:g}, where reward_range promises {best:g}"
        if not played.steps[-1].terminated:
            yield f"task {task}: is cut short ({played.steps[-1].info['stop_reason']})"


def _floor(probe: _Probe) -> Iterator[str]:
    """Who knows nothing earns no more than reward_floor."""
    for task in probe.tasks:
        for name, policy in probe.spam().items():
            reward = probe.play(policy, task).reward
            if not reward <= probe.env.reward_floor:
                yield f"task {task}: {name} earns {reward:g}, above {probe.env.reward_floor:g}"


def _rewards(probe: _Probe) -> Iterator[str]:
    """Named rewards add up, turn by turn; returns are finite and in the declared range."""
    low, high = probe.env.reward_range
    for task in probe.tasks:
        for name, policy in {"gold": probe.env.gold_policy(), **probe.spam()}.items():
            played = probe.play(policy, task)
            for step in played.steps:
                total = sum(step.info["rewards"].values())
                if not math.isclose(total, step.reward, abs_tol=1e-9):
                    yield f"task {task}, {name}: {step.info['rewards']} is not {step.reward:g}"
            if not low - 1e-9 <= played.reward <= high + 1e-9:
                yield f"task {task}, {name}: {played.reward:g} is outside [{low:g}, {high:g}]"


def _info(probe: _Probe) -> Iterator[str]:
    """Info is plain data: it pickles, and comes back equal."""
    for task in probe.tasks:
        played = probe.gold(task)
        for info in (played.info, *(step.info for step in played.steps)):
            if pickle.loads(pickle.dumps(info)) != info:
                yield f"task {task}: info changes in a pickle: {info}"


def _copies_in_mid_episode(probe: _Probe) -> Iterator[str]:
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


async def _three_ways(probe: _Probe, gold: Played, half: int) -> list[list[StepResult]]:
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


def _faces(probe: _Probe) -> Iterator[str]:
    """Gymnasium's face and the asynchronous one do the same."""
    for task in probe.tasks:
        for name, policy in {"gold": None, **probe.spam()}.items():
            with probe.copies(1) as [env]:
                there = play(env, policy or env.gold_policy(), seed=probe.seed, task=task)
            if there != probe.play(policy or probe.env.gold_policy(), task):
                yield f"task {task}, {name}: reset/step and areset/astep differ"


def _free_loop(probe: _Probe) -> Iterator[str]:
    """Nothing keeps the event loop from others for long."""
    # A machine that is busy with other work delays a heartbeat as well, but hardly every time.
    for _ in range(3):
        probe.longest_block_s = min(probe.longest_block_s, loop_thread.run(_longest_block(probe)))
        if probe.longest_block_s <= probe.max_block_s:
            return
    yield (
        f"the event loop was not free for {probe.longest_block_s * 1000:.0f} ms: mark plain "
        f"functions that take long with blocking = True, or await inside async ones"
    )


async def _longest_block(probe: _Probe) -> float:
    """The longest delay of a heartbeat while tasks are played, in seconds."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            longest = max(longest, time.perf_counter() - before - BEAT_S)

    heart = asyncio.create_task(beat())
    env = probe.env.group(1)[0]
    try:
        for task in probe.tasks:
            for policy in (env.gold_policy(), *probe.spam().values()):
                # So that the heart beats before the episode and after it.
                await asyncio.sleep(2 * BEAT_S)
                await aplay(env, policy, seed=probe.seed, task=task)
        await asyncio.sleep(2 * BEAT_S)
    finally:
        heart.cancel()
        await env.aclose()
    return longest


def _close(probe: _Probe) -> Iterator[str]:
    """Closing twice is harmless, and closes nothing for others."""
    with probe.copies(1) as [env]:
        before = probe.gold(probe.tasks[0])
        env.reset(seed=probe.seed)
        env.close()  # And again, as every copy is.
    if probe.gold(probe.tasks[0]) != before:
        yield "after one copy was closed twice, others play differently"


@contextmanager
def _global_generators() -> Iterator[list[str]]:
    """Lists, afterwards, the global generators that were used or seeded; puts them back."""
    changed: list[str] = []
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    yield changed
    if random.getstate() != python:
        changed.append("Python's global generator")
        random.setstate(python)
    if pickle.dumps(np.random.get_state(legacy=False)) != pickle.dumps(numpy):
        changed.append("NumPy's global generator")
        np.random.set_state(numpy)


RULES: dict[str, Callable[[_Probe], Iterator[str]]] = {
    "types": _types,
    "determinism": _determinism,
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
