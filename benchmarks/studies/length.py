"""Length bias (Dr. GRPO, arXiv 2503.20783, section 3; Concise Reasoning, arXiv 2504.05185).

To which lengths do algorithms drive right and wrong answers, where words reduce the reward and
where they do not matter?

The environment is ``talk-v0`` (benchmarks/studies/worlds/talk.py). Words before the guess reduce
its chance to be right. Words after it, when the agent knows the result, change no reward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run
from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import read_trajectories

TINY = {"hidden_size": 48, "intermediate_size": 96, "num_layers": 2, "vocab_size": 300}
TINY |= {"context_length": 256, "demonstrations": 2000, "steps": 200}
STEPS = 50
TRAIN = [
    *("env=talk", *(f"tiny.{key}={value}" for key, value in TINY.items())),
    *(f"steps={STEPS}", "prompts=16", "sampling.max_tokens=64"),
    *(f"eval.every={STEPS}", "eval.tasks=8", "eval.test_tasks=0", "resume=auto"),
]
ROWS = {
    "grpo": ["algo=grpo"],
    "dr-grpo": ["algo=dr-grpo", "algo.max_tokens=128"],
    "ppo lam=0.95": ["algo=ppo", "algo.advantage.lam=0.95"],
    "ppo lam=1": ["algo=ppo"],
}
RUNS = {"benchmarks.studies.worlds rl.train": TRAIN, "rows": ROWS}
LAST = 5
"""Steps whose mean is the length at the end."""
KINDS = (
    "before the guess",
    "after a right one",
    "after a wrong one",
    "right answer",
    "wrong answer",
)


def lengths(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Mean words of each kind over a step's episodes, and mean tokens of right and wrong ones."""
    found: dict[str, list[float]] = defaultdict(list)
    for t in episodes:
        if t.failure is not None:
            continue
        scores = t.turns[-1].scores
        word = "right" if scores["right"] else "wrong"
        found[KINDS[0]].append(scores["before"])
        found[f"after a {word} one"].append(scores["after"])
        found[f"{word} answer"].append(t.num_sampled)
    return {kind: fmean(found[kind]) for kind in KINDS if kind in found}


def ends(curve: Sequence[Mapping[str, float]], kind: str) -> tuple[float, float]:
    """A length in the first and in the last steps of a run."""
    known = [step[kind] for step in curve if kind in step]
    return fmean(known[:LAST]), fmean(known[-LAST:])


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Lengths at the end of each algorithm's runs, how far they moved, and the curves."""
    curves: dict[str, list[list[dict[str, float]]]] = defaultdict(list)
    for seed in seeds:
        for row, words in ROWS.items():
            out = folder / f"{row.replace(' ', '-')}-{seed}"
            finished_run(
                "benchmarks.studies.worlds rl.train", [*TRAIN, *words, f"seed={seed}"], out
            )
            steps = sorted((out / "trajectories").glob("step-*.jsonl.gz"))
            curves[row].append([lengths(read_trajectories(path)) for path in steps])
    moved, ended = [], []
    for row, runs in curves.items():
        pairs = {kind: [ends(run, kind) for run in runs] for kind in KINDS}
        ended.append({"algo": row} | {k: interval([p[1] for p in pairs[k]]) for k in KINDS})
        grown = {kind: [after - before for before, after in pairs[kind]] for kind in KINDS}
        moved.append({"algo": row} | {kind: interval(grown[kind]) for kind in KINDS[:3]})
        apart = zip(grown[KINDS[2]], grown[KINDS[1]], strict=True)
        moved[-1]["wrong minus right"] = interval([wrong - right for wrong, right in apart])
    start = [ends(run, kind)[0] for runs in curves.values() for run in runs for kind in KINDS[:1]]
    unit = "words before and after the guess, tokens of whole answers"
    return {
        f"Lengths of the last {LAST} of {STEPS} steps ({unit}); {fmean(start):.1f} words before "
        "the guess at the start": ended,
        f"Words: how far they moved from the first {LAST} steps": moved,
        "Words after a wrong guess, mean over seeds": [
            {"algo": row}
            | {
                f"step {at}": fmean(run[at - 1].get(KINDS[2], 0.0) for run in runs)
                for at in range(1, STEPS + 1)
                if at == 1 or at % 10 == 0
            }
            for row, runs in curves.items()
        ],
    }
