"""Rules of a single episode: types, determinism, splits, order, its end, Gymnasium's own check."""

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
"""Most tasks of a split that are compared with those of the others."""


def types(probe: Probe) -> Iterator[str]:
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
        played = probe.reference(task)
        first: Any = played.first
        if not isinstance(first, str):
            yield f"task {task}: the first observation is {first!r}, not a text"
        replies: list[Any] = [*played.steps]
        for step in replies:
            if not isinstance(step, StepResult) or not isinstance(step.observation, str):
                yield f"task {task}: a step returned {step!r}, not a StepResult with a text"


def determinism(probe: Probe) -> Iterator[str]:
    """Seed and task decide everything; Python's and NumPy's global generators are left alone."""
    for name, task in probe.pairs():
        with global_generators() as used:
            runs = [probe.play(name, task) for _ in range(2)]
        if runs[0] != runs[1]:
            yield (
                f"task {task}, {name}: two episodes with the same seed and task differ: draw all "
                f"that is random from self.np_random, and iterate over no set"
            )
        for generator in used:
            yield f"task {task}, {name}: {generator} is used or seeded; use self.np_random"
    with probe.copies(2) as [one, other]:
        drawn = [[env.reset(seed=seed) for seed in range(8)] for env in (one, other)]
    if drawn[0] != drawn[1]:
        yield "two resets with the same seed and no task differ: hand the seed on to super().reset"
    if len(probe.env.tasks) >= 8 and len({info["task"] for _, info in drawn[0]}) == 1:
        yield "eight seeds all draw the same task: leave the choice of the task to super().reset"


def splits(probe: Probe) -> Iterator[str]:
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
    try:
        twin = probe.build(split)
    except ValueError:
        return {}  # A data set may have no such split.
    twin._lease = probe.env._lease.share()  # The same services serve every split.
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


def order(probe: Probe) -> Iterator[str]:
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
            yield f"{face} {when} does not raise OrderError: leave that to super().{face}"

    with probe.copies(1) as [env]:
        yield from refused(env, "before the first reset")
        play(env, probe.policy(probe.player), seed=probe.seed, task=probe.tasks[0])
        yield from refused(env, "after the episode's end")


def terminal(probe: Probe) -> Iterator[str]:
    """What a turn says is what its step returns, the last one of an episode too."""
    for name, task in probe.pairs():
        with probe.copies(1) as [env]:
            said = _listen(env)
            played = loop_thread.run(aplay(env, probe.policy(name), seed=probe.seed, task=task))
        told = [step.observation for step in played.steps]
        different = [i for i, pair in enumerate(zip(said, told, strict=False)) if len({*pair}) > 1]
        if different:
            turn = different[0]
            yield (
                f"task {task}, {name}: turn {turn + 1} of {len(told)} said {said[turn][:60]!r}, "
                f"its step returned {told[turn][:60]!r}: keep what turn says, the last words of "
                f"an episode too"
            )


def _listen(env: AnyEnv) -> list[str]:
    """Collects the observations of a copy's turns, as its author gives them."""
    author, said = env.turn, list[str]()

    def heard(reply: Reply) -> Reply:
        # What is no Reply is named by the step that gets it.
        if isinstance(reply, Reply):
            said.append(reply.observation)
        return reply

    async def awaited(answer: Any) -> Reply:
        return heard(await answer)

    async def waits(action: Action) -> Reply:
        return await awaited(author(action))

    def plain(action: Action) -> Any:
        answer: Any = author(action)
        return awaited(answer) if inspect.isawaitable(answer) else heard(answer)

    vars(env)["turn"] = waits if inspect.iscoroutinefunction(author) else plain
    return said


def info(probe: Probe) -> Iterator[str]:
    """Info is plain data: it pickles, and comes back equal."""
    for task in probe.tasks:
        played = probe.reference(task)
        for found in (played.info, *(step.info for step in played.steps)):
            if pickle.loads(pickle.dumps(found)) != found:
                yield f"task {task}: info changes in a pickle; keep plain values in it: {found}"


def gymnasium_check(probe: Probe) -> Iterator[str]:
    """Gymnasium's own ``check_env`` passes."""
    from gymnasium.utils.env_checker import check_env

    with probe.copies(1) as [env], warnings.catch_warnings():
        # Its warnings are advice (an environment made without gymnasium.make has no spec).
        warnings.simplefilter("ignore")
        try:
            check_env(env, skip_render_check=True)
        except AssertionError as error:
            yield f"gymnasium.utils.env_checker.check_env: {error}"
