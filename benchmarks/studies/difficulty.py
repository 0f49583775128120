"""Difficulty bias (Dr. GRPO, arXiv 2503.20783, section 3.1).

Division by the standard deviation gives more weight to groups in which almost all or almost no
episodes succeed. How much more weight do they get, and how does success on easy and on hard tasks
change?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import envs
from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run
from rl.credit.advantages.math import group_advantages
from rl.credit.options import Std
from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import read_trajectories
from rl.run.metrics.episodes import success_of

ENV = ["env=code-sandbox", "env.max_turns=1"]
STEPS = 30
TRAIN = [
    *(*ENV, f"steps={STEPS}", "prompts=16", f"save_every={STEPS}"),
    *(f"eval.every={STEPS}", "eval.tasks=32", "eval.test_tasks=0", "resume=auto"),
]
EVALUATE = [*ENV, "split=test", "tasks=512"]
HALF_WAY = range(11, 16)
STDS: tuple[Std, ...] = ("unbiased", "none", "mean")
"""What each group's centred rewards are divided by."""
ROWS = {f"std={std}": ["algo=grpo", f"algo.advantage.std={std}"] for std in ("unbiased", "none")}
RUNS = {"rl.train": TRAIN, "rl.eval": EVALUATE, "rows": ROWS}
BINS = ("none right", "up to 1/4 right", "1/4 to 3/4 right", "from 3/4 right", "all right")


def bin_of(rate: float) -> str:
    """The bin of a group's share of right answers."""
    if rate in (0.0, 1.0):
        return BINS[0 if rate == 0 else -1]
    return BINS[1 if rate <= 0.25 else 2 if rate < 0.75 else 3]


def shares(groups: Sequence[Sequence[float]], std: Std) -> dict[str, float]:
    """Each bin's share of the sum of absolute advantages of all groups.

    Args:
        groups: the rewards of each group's members, 0 or 1.
        std: what the centred rewards are divided by.
    """
    rewards = torch.tensor([r for group in groups for r in group], dtype=torch.float64)
    ids = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    sizes = group_advantages(rewards, ids, std).advantages.abs()
    totals = torch.zeros(len(groups), dtype=torch.float64).index_add(0, ids, sizes).tolist()
    whole = sum(totals)
    by_bin = dict.fromkeys(BINS, 0.0)
    for group, total in zip(groups, totals, strict=True):
        by_bin[bin_of(fmean(group))] += total / whole
    return by_bin


def grouped(trajectories: Iterable[Trajectory]) -> list[list[float]]:
    """The success of each group's members, of a step's episodes."""
    groups: dict[int, list[float]] = defaultdict(list)
    for t in trajectories:
        if t.failure is None:
            groups[t.task].append(success_of(t, "passed"))
    return list(groups.values())


def by_difficulty(split: str, episodes: Iterable[Trajectory]) -> dict[float, float]:
    """Success on tasks of each difficulty."""
    env = envs.make("code-sandbox", split=split)
    successes = defaultdict(list)
    for t in episodes:
        successes[env.difficulty(t.task)].append(success_of(t, "passed"))
    return {level: fmean(successes[level]) for level in sorted(successes)}


def tested(folder: Path) -> dict[float, float]:
    """Success on test tasks of each difficulty."""
    return by_difficulty("test", read_trajectories(folder / "trajectories.jsonl.gz"))


def half_way(folder: Path) -> dict[float, float]:
    """Success on the training tasks of some steps; hardly one was played before."""
    paths = [folder / "trajectories" / f"step-{step:06d}.jsonl.gz" for step in HALF_WAY]
    return by_difficulty("train", [t for path in paths for t in read_trajectories(path)])


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The two tables: what groups weigh, and what is learned of easy and of hard tasks."""
    weights: list[dict[str, dict[str, float]]] = []
    learned: dict[str, list[dict[float, float]]] = defaultdict(list)
    middle: dict[str, list[dict[float, float]]] = defaultdict(list)
    for seed in seeds:
        before = folder / f"before-{seed}"
        finished_run("rl.eval", [*EVALUATE, f"seed={seed}"], before)
        learned["before"].append(tested(before))
        for row, words in ROWS.items():
            out = folder / f"{row}-{seed}"
            finished_run("rl.train", [*TRAIN, *words, f"seed={seed}"], out)
            after = folder / f"{row}-{seed}-test"
            model = f"model={out}/checkpoints/step-{STEPS:06d}"
            finished_run("rl.eval", [*EVALUATE, model, f"seed={seed}"], after)
            learned[row].append(tested(after))
            middle[row].append(half_way(out))
        played = sorted((folder / f"std=unbiased-{seed}" / "trajectories").glob("step-*.jsonl.gz"))
        groups = [group for path in played for group in grouped(read_trajectories(path))]
        counts = dict.fromkeys(BINS, 0.0)
        for group in groups:
            counts[bin_of(fmean(group))] += 1 / len(groups)
        weights.append({"share of groups": counts} | {f"std={s}": shares(groups, s) for s in STDS})
    return {
        f"Of the groups of {STEPS} steps of std=unbiased: each bin's share of the sum of absolute "
        "advantages": [
            {"group": b}
            | {column: interval([w[column][b] for w in weights]) for column in weights[0]}
            for b in BINS
        ],
        "Success on 512 test tasks by difficulty (0: one filter or map, 1: four of them)": levels(
            learned
        ),
        f"Success on training tasks in steps {HALF_WAY[0]} to {HALF_WAY[-1]}": levels(middle),
    }


def levels(rates: Mapping[str, Sequence[Mapping[float, float]]]) -> list[dict[str, Any]]:
    """A row for each kind of run: success by difficulty, at the ends and between."""
    rows = []
    for row, runs in rates.items():
        # A few steps of a run may play no task of the rarest difficulty.
        known = sorted(set.intersection(*(set(run) for run in runs)))
        columns = {f"{level:.2f}": interval([run[level] for run in runs]) for level in known}
        gap = interval([run[known[0]] - run[known[-1]] for run in runs])
        rows.append({"row": row, **columns, "easiest minus hardest": gap})
    return rows
