"""Further runs that must learn: PPO, repair, search, a model as user; the effect of feedback.

    python -m benchmarks.learning.runs [--rows ppo repair search user] [--seed 0] [--out FOLDER]

Each row is ``python -m rl.train`` in its own process. Success is measured on test tasks, on which
no choice depends. The best weights of the repair run then play the same test tasks twice more, with
the normal feedback and with its values blanked out. The difference is paired by task.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

from rl.run.folder import read_jsonl, versions

ROWS = {
    "ppo": ["env=code-sandbox", "algo=ppo"],
    "repair": ["env=code-sandbox", "env.hide=constant", "env.max_turns=2"],
    "search": ["env=search-qa"],
    # A customer that a frozen copy of the first model plays, which is not trained.
    "user": [
        *("env=support", "env.customer=role", "env.instructions=false"),
        *("partner=local", "partner.role=customer", "partner.max_tokens=32"),
        *("sampling.max_tokens=64", "prompts=12", "group_size=6", "steps=20"),
        *("tiny.demonstrations=2000", "tiny.steps=250", "tiny.batch_size=16"),
        *("tiny.warmup_steps=20", "eval.tasks=24", "eval.test_tasks=96"),
    ],
}
FEEDBACK_TASKS = 1024


def run(module: str, words: list[str]) -> float:
    """A command in a process of its own; returns its seconds."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", module, *words], check=True, timeout=7200)
    return time.monotonic() - started


def train(name: str, seed: int, folder: Path, extra: list[str]) -> dict[str, object]:
    """One row: success on test tasks before and after, and the seconds from a cold start."""
    out = folder / f"{name}-{seed}"
    seconds = run("rl.train", [*ROWS[name], f"seed={seed}", f"out={out}", *extra])
    tests = [r for r in read_jsonl(out / "metrics.jsonl") if "test/success" in r]
    interval = ("test/success", "test/success_low", "test/success_high")
    return {
        "row": name,
        "command": " ".join(["python -m rl.train", *ROWS[name], f"seed={seed}", *extra]),
        "seconds": seconds,
        "before": [tests[0][key] for key in interval],
        "after": [tests[-1][key] for key in interval],
        "test_tasks": tests[-1]["test/tasks"],
    }


def last_turn_passes(path: Path) -> dict[int, float]:
    """Whether each task's last program passed."""
    with gzip.open(path, "rt") as file:
        episodes = [json.loads(line) for line in file]
    return {e["task"]: e["turns"][-1]["scores"]["passed"] for e in episodes}


def feedback(seed: int, folder: Path) -> dict[str, object]:
    """The last turn's pass rate with the feedback and with its values blanked, paired by task."""
    model = folder / f"repair-{seed}" / "checkpoints" / "best"
    passes = {}
    for kind in ("tests", "blank"):
        out = folder / f"feedback-{kind}-{seed}"
        words = [*ROWS["repair"], f"env.feedback={kind}", f"model={model}", f"out={out}"]
        run("rl.eval", [*words, f"tasks={FEEDBACK_TASKS}", f"seed={seed}"])
        passes[kind] = last_turn_passes(out / "trajectories.jsonl.gz")
    tasks = sorted(passes["tests"].keys() & passes["blank"].keys())
    gains = [passes["tests"][task] - passes["blank"][task] for task in tasks]
    half = 1.96 * stdev(gains) / len(gains) ** 0.5
    return {
        "row": "feedback against blank",
        "with": fmean(passes["tests"].values()),
        "blank": fmean(passes["blank"].values()),
        "gain": [fmean(gains), fmean(gains) - half, fmean(gains) + half],
        "tasks": len(tasks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/learning-runs"))
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, object]] = []
    for name in options.rows:
        results.append(train(name, options.seed, options.out, options.set))
        print(json.dumps(results[-1]), flush=True)
        if name == "repair":
            results.append(feedback(options.seed, options.out))
            print(json.dumps(results[-1]), flush=True)
    record = {"rows": results, "cores": os.cpu_count(), **versions()}
    (options.out / "learning_runs.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
