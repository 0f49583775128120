"""Rules about a single episode: types, determinism, splits, call order, end, Gymnasium's check."""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import combinations
from typing import Any

from envs.base.loop import loop_thread
from envs.checks.probe import AnyEnv, Probe, global_generators
from envs.datasets import SPLITS
from envs.episode import Action, OrderError, Reply, StepResult
from envs.play import aplay, play

SPLIT_SAMPLE = 64
"""Maximum number of tasks per split that the comparison of splits reads."""


def types(probe: Probe) -> Iterator[str]:
    """Check that options, observations and step results have the types of the contract."""
    env = probe.env
    options: Any = env.options
    if not (is_dataclass(options) and isinstance(options, env.Options)):
        yield f"options are {type(options).__name__}, not the class's Options"
    elif not vars(type(options))["__dataclass_params__"].frozen:
        yield f"{type(options).__name__} must be a frozen dataclass"
    build: Any = type(env)
    build(options, services=None).close()
    for task in probe.tasks:
        played = probe.reference(task)
        first: Any = played.first
        if not isinstance(first, str):
            yield f"task {task}: the first observation is {first!r}, not a text"
        replies: list[Any] = [*played.steps]
        for step in replies:
            if not isinstance(step, StepResult) or not isinstance(step.observation, str):
                yield f"task {task}: a step returned {step!r}, not a StepResult with a text"


def determinism(probe: Probe) -> Iterator[str]:
    """Check that seed and task determine the episode, and that global generators stay unused."""
    for name, task in probe.pairs():
        with global_generators() as used:
            runs = [probe.play(name, task) for _ in range(2)]
        if runs[0] != runs[1]:
            yield (
                f"task {task}, {name}: two episodes with the same seed and task differ: draw all "
                f"random numbers from self.np_random, and iterate over no set"
            )
        for generator in used:
            yield f"task {task}, {name}: {generator} is used or seeded; use self.np_random"
    with probe.copies(2) as [one, other]:
        drawn = [[env.reset(seed=seed) for seed in range(8)] for env in (one, other)]
    if drawn[0] != drawn[1]:
        yield "two resets with the same seed and no task differ: pass the seed to super().reset"
    if len(probe.env.tasks) >= 8 and len({info["task"] for _, info in drawn[0]}) == 1:
        yield "eight seeds all draw the same task: leave the choice of the task to super().reset"


def splits(probe: Probe) -> Iterator[str]:
    """Check, on a sample of each split, that no task is in two splits."""
    sampled = {split: questions for split in SPLITS if (questions := _questions(probe, split))}
    for one, other in combinations(sampled, 2):
        # If first observations distinguish the tasks, equal observations mean equal tasks. If they
        # do not ("Guess my number."), equal tasks have an equal repr as well.
        start = 1 if _distinguish(sampled[one]) and _distinguish(sampled[other]) else 0
        known = {question[start:]: index for index, question in sampled[one].items()}
        shared = [
            (known[question[start:]], index, question[1])
            for index, question in sampled[other].items()
            if question[start:] in known
        ]
        if shared:
            first, second, text = shared[0]
            yield (
                f"task {first} of {one} is task {second} of {other} ({text[:60]!r}), and "
                f"{len(shared)} of {len(sampled[other])} are shared: select tasks by "
                f"options.split, and derive the observation only from the task"
            )


def _distinguish(questions: Mapping[int, tuple[str, str]]) -> bool:
    """Whether all tasks, of which there are at least two, have different first observations."""
    return len({first for _, first in questions.values()}) == len(questions) > 1


def _questions(probe: Probe, split: str) -> dict[int, tuple[str, str]]:
    """``repr`` and first observation of some tasks of a split, by task index."""
    try:
        twin = probe.build(split)
    except ValueError:
        return {}  # A data set may have no such split.
    twin._lease = probe.env._lease.share()  # The same services serve every split.
    count, half = len(twin.tasks), SPLIT_SAMPLE // 2
    chosen = sorted({*range(min(count, half)), *(i * count // half for i in range(half))})
    try:
        # Equal seeds in each split make equal whatever depends on the generator alone.
        return {
            index: (repr(twin.tasks[index]), twin.reset(seed=seed, options={"task": index})[0])
            for seed, index in enumerate(chosen)
        }
    finally:
        twin.close()


def order(probe: Probe) -> Iterator[str]:
    """Check that a step before the first reset or after the end raises OrderError, in both APIs."""

    def refused(env: AnyEnv, when: str) -> Iterator[str]:
        methods: dict[str, Callable[[], StepResult]] = {
            "step": lambda: env.step(""),
            "astep": lambda: loop_thread.run(env.astep("")),
        }
        for method, step in methods.items():
            try:
                step()
            except OrderError:
                continue
            yield f"{method} {when} does not raise OrderError: leave that to super().{method}"

    with probe.copies(1) as [env]:
        yield from refused(env, "before the first reset")
        play(env, probe.policy(probe.player), seed=probe.seed, task=probe.tasks[0])
        yield from refused(env, "after the episode's end")


def terminal(probe: Probe) -> Iterator[str]:
    """Check that every step, also the last, returns the observation that ``turn`` returned."""
    for name, task in probe.pairs():
        with probe.copies(1) as [env]:
            turns = _record_turns(env)
            played = loop_thread.run(aplay(env, probe.policy(name), seed=probe.seed, task=task))
        steps = [step.observation for step in played.steps]
        different = [i for i, (a, b) in enumerate(zip(turns, steps, strict=False)) if a != b]
        if different:
            turn = different[0]
            yield (
                f"task {task}, {name}: turn {turn + 1} of {len(steps)} gave the observation "
                f"{turns[turn][:60]!r}, its step returned {steps[turn][:60]!r}: keep the turn's "
                f"observation, also at the end of an episode"
            )


def _record_turns(env: AnyEnv) -> list[str]:
    """Wrap the copy's ``turn`` to record its observations, and return the list that holds them."""
    turn, observations = env.turn, list[str]()

    def recorded(reply: Reply) -> Reply:
        # The step reports anything that is no Reply.
        if isinstance(reply, Reply):
            observations.append(reply.observation)
        return reply

    async def awaited(pending: Any) -> Reply:
        return recorded(await pending)

    async def async_turn(action: Action) -> Reply:
        return await awaited(turn(action))

    def plain_turn(action: Action) -> Any:
        reply: Any = turn(action)
        return awaited(reply) if inspect.isawaitable(reply) else recorded(reply)

    vars(env)["turn"] = async_turn if inspect.iscoroutinefunction(turn) else plain_turn
    return observations


def info(probe: Probe) -> Iterator[str]:
    """Check that info is plain data, so that an unpickled copy equals the original."""
    for task in probe.tasks:
        played = probe.reference(task)
        for found in (played.info, *(step.info for step in played.steps)):
            if pickle.loads(pickle.dumps(found)) != found:
                yield f"task {task}: info changes in a pickle; keep plain values in it: {found}"


def gymnasium_check(probe: Probe) -> Iterator[str]:
    """Check that Gymnasium's own ``check_env`` passes."""
    from gymnasium.utils.env_checker import check_env

    with probe.copies(1) as [env], warnings.catch_warnings():
        # The warnings are only advice (an environment made without gymnasium.make has no spec).
        warnings.simplefilter("ignore")
        try:
            check_env(env, skip_render_check=True)
        except AssertionError as error:
            yield f"gymnasium.utils.env_checker.check_env: {error}"
