"""Reflection (Rethinking Reflection in Pre-Training, arXiv 2504.04022).

Does a model correct a chain with a wrong answer after the trigger "Wait,", before and after
reinforcement? The chains are corrupted gold chains, and the model's own.

The environment is ``reflective-math-v0`` (benchmarks/studies/worlds/reflective.py), whose author
writes "Wait," in the warm start. Reflection is explicit if ``reflects``
(rl/run/metrics/reflection.py) finds a phrase after the trigger.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from agents.agent import TokenAgent
from agents.completion import SamplingParams
from benchmarks.studies.tables import interval
from benchmarks.studies.worlds import register_worlds
from benchmarks.studies.worlds.reflective import KINDS, PLACES, TRIGGER, corrupted, terms_of
from benchmarks.train_runs import finished_run
from envs.math.generated import GeneratedTasks
from envs.math.task import MathTask
from envs.math.verification.verifier import MathVerifier, Outcome
from envs.rewards.format import last_boxed
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.run.metrics.reflection import reflection_rates, reflects
from rl.runtime.runtime import Runtime, open_runtime
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.command_line import parse

ENV = ["env=reflective-math", "env.topic=arithmetic", "env.instructions=false"]
WARM = ["tiny.demonstrations=6000", "tiny.steps=500"]
STEPS = 30
TRAIN = [
    *(*ENV, *WARM, f"steps={STEPS}", "prompts=16", "sampling.max_tokens=160"),
    *(f"save_every={STEPS}", "eval.every=100", "eval.tasks=16", "eval.test_tasks=0", "resume=auto"),
]
RUNS = {"benchmarks.studies.worlds rl.train": TRAIN}
QUESTIONS = 64
"""Test questions of at least three steps, each corrupted in nine ways."""
OWN = 256
"""Test questions that the models answer themselves."""
Item = tuple[MathTask, str]
"""A question, and a chain that ends wrong."""


async def gone_on(runtime: Runtime, items: Sequence[Item], trigger: str) -> list[str]:
    """What the model writes after each chain and the trigger, or after the question alone."""

    async def one(place: int, task: MathTask, chain: str) -> str:
        agent = TokenAgent(
            runtime.renderer,
            runtime.policy,
            SamplingParams(max_tokens=160, seed=place),
            session=f"reflection-{place}",
            context_length=runtime.learner.facts.context_window,
        )
        agent.start(task.question)
        if chain:
            agent.observe(chain + trigger, continues=True)
        runtime.policy.begin([agent.session])
        try:
            return str(await agent.act())
        finally:
            runtime.policy.end(agent.session)

    return list(await asyncio.gather(*(one(i, *item) for i, item in enumerate(items))))


def is_right(task: MathTask, text: str) -> bool:
    """Whether the last box of a text holds the answer."""
    answer = last_boxed(text)
    return answer is not None and MathVerifier.quick(task.answer, answer) is Outcome.RIGHT


def rates(items: Sequence[Item], texts: Sequence[str]) -> dict[str, float]:
    """The rates of what was written after the trigger; the answer may stand before it."""
    right = [is_right(task, chain + text) for (task, chain), text in zip(items, texts, strict=True)]
    found = reflection_rates(right, [reflects(text) for text in texts])
    return {"items": float(len(items)), **asdict(found)}


def situations(tasks: Sequence[MathTask]) -> dict[tuple[str, str], list[Item]]:
    """Each task's right chain, corrupted in every way."""
    rng = random.Random(0)
    return {
        (kind, place): [(task, corrupted(task.question, kind, place, rng)) for task in tasks]
        for kind in KINDS
        for place in PLACES
    }


async def measured(models: dict[str, str], seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """By model, then by what was corrupted, the rates; and of the models' own wrong chains."""
    every = GeneratedTasks("test", 0, "arithmetic", 1)
    tasks = [every[i] for i in range(len(every))]
    long = [task for task in tasks if len(terms_of(task.question)[1]) >= 3][:QUESTIONS]
    by_way = situations(long)
    found: dict[str, dict[str, dict[str, float]]] = {}
    own: dict[str, list[str]] = {}
    for again in (False, True):
        for model, path in models.items():
            words = [*ENV, *WARM, f"model={path}", f"seed={seed}"]
            config = parse(EvaluateConfig, words, command="", presets={})
            async with open_runtime(config, lambda text: None) as runtime:
                if not again:
                    own[model] = await gone_on(runtime, [(t, "") for t in tasks[:OWN]], "")
                    found[model] = await _situational(runtime, by_way)
                    continue
                failed = [
                    i
                    for i, task in enumerate(tasks[:OWN])
                    if not any(is_right(task, said[i]) for said in own.values())
                ]
                items = [(tasks[i], own[model][i]) for i in failed]
                found[model]["its own"] = rates(items, await gone_on(runtime, items, TRIGGER))
    return found


async def _situational(
    runtime: Runtime, by_way: dict[tuple[str, str], list[Item]]
) -> dict[str, dict[str, float]]:
    items = [item for way in by_way.values() for item in way]
    texts = await gone_on(runtime, items, TRIGGER)
    ways = [way for way, some in by_way.items() for _ in some]
    found = {}
    for word in ("all", *KINDS, *PLACES):
        some = [i for i, way in enumerate(ways) if word == "all" or word in way]
        found[word] = rates([items[i] for i in some], [texts[i] for i in some])
    return found


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rates by corruption before and after RL, and how often episodes reflect by themselves."""
    register_worlds()
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    logged: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for seed in seeds:
        out = folder / f"rl-{seed}"
        finished_run("benchmarks.studies.worlds rl.train", [*TRAIN, f"seed={seed}"], out)
        models = {"before": "tiny", "after": f"{out}/checkpoints/step-{STEPS:06d}"}
        for model, by_corruption in asyncio.run(measured(models, seed)).items():
            for name, numbers in by_corruption.items():
                found[name, model].append(numbers)
        rewards = {
            r["step"]: r["reward"] for r in read_jsonl(out / "metrics.jsonl") if "reward" in r
        }
        for step in (1, *range(10, STEPS + 1, 10)):
            episodes = read_trajectories(out / "trajectories" / f"step-{step:06d}.jsonl.gz")
            said = fmean(any(reflects(turn.action) for turn in t.turns) for t in episodes)
            logged[step].append((rewards[step], said))
    return {
        "After a chain that ends wrong and 'Wait,'": [
            row for name in dict.fromkeys(name for name, _ in found) for row in _rows(name, found)
        ],
        "Episodes of training": [
            {"step": step}
            | {
                "reward": interval([r for r, _ in pairs]),
                "reflect": interval([s for _, s in pairs]),
            }
            for step, pairs in logged.items()
        ],
    }


def _rows(
    name: str, found: dict[tuple[str, str], list[dict[str, float]]]
) -> Iterator[dict[str, Any]]:
    """The rates before and after, and by how much they changed, by seed."""
    before, after = found[name, "before"], found[name, "after"]
    changed = [{k: b[k] - a[k] for k in a} for a, b in zip(before, after, strict=True)]
    for model, runs in (("before", before), ("after", after), ("change", changed)):
        columns = {key: interval([run[key] for run in runs]) for key in runs[0]}
        yield {"corruption": name, "model": model} | columns
