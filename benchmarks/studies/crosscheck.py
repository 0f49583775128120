"""Checks of programs without their hidden tests (arXiv 2502.06807).

Which failures of hidden tests does a brute-force cross-check detect? How much does a submission
from the largest cluster of programs with equal answers gain?
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run
from envs.code.clusters import answers, clusters
from envs.code.crosscheck import cross_check
from envs.code.generated import GeneratedTasks
from envs.code.grader import CachedGrader
from envs.code.task import CodeTask, extract_program
from rl.rollout.trajectory_files import read_trajectories
from tools.sandbox import make_sandbox
from tools.syntax import split_reasoning

ENV = ["env=code-sandbox", "env.max_turns=1"]
STEPS = 6
TRAIN = [
    *(*ENV, f"steps={STEPS}", "prompts=16", f"save_every={STEPS}"),
    *("eval.every=100", "eval.tasks=16", "eval.test_tasks=0", "resume=auto"),
]
EVALUATE = [*ENV, "split=test", "tasks=64", "episodes=8"]
RUNS = {"rl.train": TRAIN, "rl.eval": EVALUATE}
COUNTS = (3, 10, 50)
"""Random inputs of a cross-check."""
INPUTS = 20
"""Random inputs on which clusters agree."""
PUBLIC = (1, 3)
"""Numbers of public tests that an agent reads; the environment has three."""


@dataclass(frozen=True)
class Sample:
    """A program of the policy and what is known of it."""

    public: int
    """How many public tests it passes before the first that it fails."""
    right: bool
    """Passes all tests, the hidden ones as well."""
    agrees: dict[int, bool]
    """Whether it agrees with the reference, by the number of random inputs; empty where it fails
    the first public test."""
    answers: tuple[str, ...] | None
    """On the random inputs of clustering."""


async def examined(folder: Path) -> dict[int, list[Sample]]:
    """Every sample of every task."""
    tasks = GeneratedTasks("test")
    async with make_sandbox("auto") as sandbox:
        grader = CachedGrader(sandbox)
        samples = defaultdict(list)
        for t in read_trajectories(folder / "trajectories.jsonl.gz"):
            if t.failure is None:
                samples[t.task].append(await _sample(grader, tasks[t.task], t.turns[0].action))
        await grader.close()
    return dict(samples)


async def _sample(grader: CachedGrader, task: CodeTask, action: str) -> Sample:
    source = task.source(extract_program(split_reasoning(action)[1]))
    public = await grader.grade(source, task.public, task.entry_point)
    hidden = await grader.grade(source, task.hidden, task.entry_point)
    passed = [outcome.passed for outcome in public.outcomes]
    num_passed = next((i for i, well in enumerate(passed) if not well), len(passed))
    agrees = {}
    if num_passed:
        for count in COUNTS:
            agrees[count] = (await cross_check(grader, task, source, count)).agreed
    said = await answers(grader, task, source, INPUTS)
    return Sample(num_passed, public.passed and hidden.passed, agrees, said)


def check_rates(samples: Sequence[Sample], public: int, count: int) -> dict[str, float]:
    """Share of passing programs that the cross-check rejects, with precision and recall."""
    passing = [s for s in samples if s.public >= public]
    rejected = [s for s in passing if not s.agrees[count]]
    wrong = [s for s in passing if not s.right]
    return {
        "wrong": len(wrong) / len(passing),
        "rejected": len(rejected) / len(passing),
        "precision": fmean(not s.right for s in rejected),
        "recall": fmean(not s.agrees[count] for s in wrong),
    }


def chosen(samples: Sequence[Sample], public: int) -> dict[str, Sample]:
    """The sample that each rule submits."""
    passing = [s for s in samples if s.public >= public]
    everyone = clusters([s.answers for s in samples])
    best = clusters([s.answers for s in passing])
    return {
        "the first": samples[0],
        "the first that passes": next(iter(passing), samples[0]),
        "of the largest cluster": samples[everyone[0][0]] if everyone else samples[0],
        "of the largest cluster of those that pass": passing[best[0][0]] if best else samples[0],
        "any that is right": next((s for s in samples if s.right), samples[0]),
    }


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the cross-check finds, and what each rule of choosing among eight samples passes."""
    found: dict[tuple[int, int], list[dict[str, float]]] = defaultdict(list)
    passes: dict[tuple[int, str], list[float]] = defaultdict(list)
    for seed in seeds:
        out = folder / f"half-trained-{seed}"
        finished_run("rl.train", [*TRAIN, f"seed={seed}"], out)
        model = f"model={out}/checkpoints/step-{STEPS:06d}"
        finished_run("rl.eval", [*EVALUATE, model, f"seed={seed}"], folder / f"samples-{seed}")
        by_task = asyncio.run(examined(folder / f"samples-{seed}"))
        everyone = [sample for samples in by_task.values() for sample in samples]
        for public in PUBLIC:
            for count in COUNTS:
                found[public, count].append(check_rates(everyone, public, count))
            choices = [chosen(samples, public) for samples in by_task.values()]
            for rule in choices[0]:
                passes[public, rule].append(fmean(choice[rule].right for choice in choices))
    rules = dict.fromkeys(rule for _, rule in passes)
    return {
        "Programs that pass the public tests: how many fail another test (wrong), how many a "
        "cross-check with that number of inputs rejects, and its precision and recall": [
            {"public tests": public, "inputs": count}
            | {name: interval([r[name] for r in rates]) for name in rates[0]}
            for (public, count), rates in found.items()
        ],
        "Success of one of eight samples a task, by the public tests that are known": [
            {"submitted": rule}
            | {f"{public} known": interval(passes[public, rule]) for public in PUBLIC}
            for rule in rules
        ],
    }
