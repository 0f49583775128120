"""Learning curves of a command-line agent that is trained through Anthropic's API.

    python -m benchmarks.learning.llm_agent [--seeds 0 1 2] [--out FOLDER]

Needs ``pip install llm llm-anthropic``. Each run is ``python -m rl.train env=agent`` with
model=tiny, and ``benchmarks/learning/llm_program.py`` is the program. The figures are success on
held-out tasks before and after, reward by step, conversations and answers per training episode, the
share of episodes whose answers are all in one conversation, and episodes per second of sampling.
Writes ``results/llm_agent.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.train_runs import train_run
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl, versions

RESULTS = Path(__file__).parents[1] / "results" / "llm_agent.json"
PROGRAM = "benchmarks/learning/llm_program.py"
WORDS = (
    "env=agent",
    f"env.loop={PROGRAM}:play",
    f"env.tasks={PROGRAM}:tasks",
    f"env.demonstrations={PROGRAM}:demonstrate",
    "env.max_turns=5",
    "env.concurrency=8",
    "tiny.steps=400",
    "steps=20",
    "prompts=8",
    "sampling.max_tokens=48",
    "eval.tasks=32",
    "eval.test_tasks=128",
    "eval.every=10",
)


def one(seed: int, folder: Path) -> dict[str, Any]:
    """One run: its success, its curves, its conversations and its speed."""
    result = train_run(f"llm-{seed}", [*WORDS, f"seed={seed}"], folder)
    run = folder / f"llm-{seed}"
    steps = [row for row in read_jsonl(run / "metrics.jsonl") if "reward" in row]
    sampling_s = sum(row["time/learner/sampling"] for row in steps)
    return {"seed": seed, **result, **conversations(run, sampling_s)}


def conversations(run: Path, sampling_s: float) -> dict[str, Any]:
    """What the training episodes of a run hold."""
    files = sorted((run / "trajectories").glob("step-*.jsonl.gz"))
    episodes = [episode for file in files for episode in read_trajectories(file)]
    played = [episode for episode in episodes if episode.turns]
    return {
        "episodes": len(episodes),
        "answers": fmean(len(episode.turns) for episode in played),
        "one_conversation": fmean(len(episode.segments) == 1 for episode in played),
        "episodes_per_s": len(episodes) / sampling_s,
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds."""
    return {
        "seeds": len(runs),
        "before": fmean(run["before"][0] for run in runs),
        "after": fmean(run["after"][0] for run in runs),
        "smallest_gain": min(run["after"][0] - run["before"][0] for run in runs),
        "slowest_s": max(run["seconds"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/llm_agent"))
    options = parser.parse_args()
    runs = [one(seed, options.out) for seed in options.seeds]
    found = summary(runs)
    load = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    record = {"summary": found, "runs": runs, **versions(), **load}
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
