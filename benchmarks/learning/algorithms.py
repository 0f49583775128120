"""Learning curves of algorithms with the same warm starts, tasks and number of episodes.

    python -m benchmarks.learning.algorithms [--studies rows ...] [--rows grpo ...]
                                             [--seeds 0 1 2] [--jobs 2] [--out FOLDER]
                                             [--set key=value ...]

Each run is ``python -m rl.train`` with model=tiny in its own process. All rows of a study share the
warm start of each seed. Success is measured on test tasks, on which no choice depends. Writes
FOLDER/algorithms.json and FOLDER/algorithms.png, and prints one line for each run and one table for
each study. A run whose folder is complete is not repeated. The file keeps the results of studies
that the command line does not name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.train_runs import train_run
from rl.run.folder import versions

COMMON = ["eval.every=5", "eval.test_tasks=256"]
STEPS = ["steps=20", "max_seconds=120"]
"""Number of updates, where all rows cost the same."""
SECONDS = ["steps=1000", "max_seconds=40"]
"""Seconds of training, where some rows play more than others."""
CODE = ["env=code-sandbox", "env.max_turns=1"]
BANDIT = [
    "grpo",
    "dr-grpo",
    "dapo-loss",
    "gspo",
    "cispo",
    "sapo",
    "gmpo",
    "rloo",
    "opo",
    "reinforce",
    "reinforce-pp",
    "reinforce-pp-baseline",
    "ppo",
    "kimi",
    "maxrl",
    "oreal",
    "prime",
]
DAPO = ["algo=dapo", "algo.minibatches=4"]
TURNS = {name: [f"algo={name}"] for name in ("grpo", "gigpo", "vineppo", "turn-ppo")}
STUDIES: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "rows": ([*CODE, *STEPS], {name: [f"algo={name}"] for name in BANDIT}),
    # Half of the groups teach nothing at times, and answers of 30 tokens in the mean grow to 90
    # where nothing stops them. On code-sandbox all six rows reach 0.96 alike.
    "dapo": (
        ["env=math", *SECONDS, "sampling.max_tokens=64"],
        {
            "dapo": DAPO,
            "without clip-higher": [*DAPO, "algo.surrogate.clip_high=0.2"],
            "without the token mean": [*DAPO, "algo.aggregation=seq-mean-token-mean"],
            "without dynamic sampling": [*DAPO, "curriculum.max_draws=1"],
            "without overlong shaping": [*DAPO, "shaping="],
            "none of them": ["algo=grpo", "algo.minibatches=4"],
        },
    ),
    "mastermind": (
        ["env=mastermind", "prompts=16", "tiny.steps=600", *SECONDS, "max_seconds=60"],
        TURNS,
    ),
    # VinePPO plays 37 tokens for one of GRPO's there: the same by updates, with K = 2.
    "mastermind-updates": (
        ["env=mastermind", "prompts=16", "tiny.steps=600", "steps=8", "max_seconds=120"],
        {**TURNS, "vineppo": ["algo=vineppo", "algo.advantage.rollouts=2"]},
    ),
    # The first program has to guess a constant that only the tests' results reveal.
    "repair": (
        ["env=code-sandbox", "env.hide=constant", "env.max_turns=2", *SECONDS, "max_seconds=60"],
        TURNS,
    ),
}
"""For each study: the words that all its runs share, and the words of each row."""


def run(study: str, row: str, seed: int, folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """One run: test success before and after, and its curves."""
    common, rows = STUDIES[study]
    words = [*common, *COMMON, *rows[row], f"seed={seed}", *extra]
    return {
        "row": row,
        "seed": seed,
        **train_run(f"{study}-{row.replace(' ', '-')}-{seed}", words, folder),
    }


def table(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean test success of each row over seeds, with its 95% t-interval within [0, 1]."""
    lines = []
    for row in dict.fromkeys(r["row"] for r in runs):
        mine = [r for r in runs if r["row"] == row]
        after = [r["after"][0] for r in mine]
        low, high = None, None
        if len(after) > 1:
            ends = stats.t.interval(0.95, len(after) - 1, fmean(after), stats.sem(after))
            low, high = (float(min(1.0, max(0.0, end))) for end in ends)
        lines.append(
            {
                "row": row,
                "seeds": len(mine),
                "before": fmean(r["before"][0] for r in mine),
                "after": [fmean(after), low, high],
                "each": after,
                "slowest_s": max(r["seconds"] for r in mine),
            }
        )
    return lines


def draw(studies: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One panel a study: validation success of each row, the mean over its seeds."""
    figure = Figure(figsize=(4.6 * len(studies), 3.6), dpi=120)
    FigureCanvasAgg(figure)
    for number, (study, record) in enumerate(studies.items(), 1):
        axes = figure.add_subplot(1, len(studies), number)
        for row in dict.fromkeys(r["row"] for r in record["runs"]):
            curves = [r["validation"] for r in record["runs"] if r["row"] == row]
            steps = zip(*curves, strict=False)
            means = [(points[0][0], fmean(y for _, y in points)) for points in steps]
            axes.plot(*zip(*means, strict=True), linewidth=1.5, label=row)
        axes.set(title=study, xlabel="learner updates")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=6)
    figure.axes[0].set_ylabel("success on validation tasks")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--rows", nargs="+", help="of those studies; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each on one core")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"))
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def one(choice: tuple[str, str, int]) -> dict[str, Any]:
        study, row, seed = choice
        result = run(study, row, seed, options.out, options.set)
        shown = {k: result[k] for k in ("row", "seed", "before", "after", "seconds")}
        sys.stdout.write(json.dumps({"study": study, **shown}) + "\n")
        sys.stdout.flush()
        return result

    path = options.out / "algorithms.json"
    record = json.loads(path.read_text()) if path.exists() else {"studies": {}}
    for study in options.studies:
        rows = [row for row in STUDIES[study][1] if not options.rows or row in options.rows]
        with ThreadPoolExecutor(options.jobs) as pool:
            choices = [(study, row, seed) for seed in options.seeds for row in rows]
            runs = list(pool.map(one, choices))
        lines = table(runs)
        record["studies"][study] = {"table": lines, "runs": runs, **versions()}
        sys.stdout.writelines(json.dumps(line) + "\n" for line in lines)
    path.write_text(json.dumps({**record, "cores": os.cpu_count()}, indent=2) + "\n")
    draw(record["studies"], options.out / "algorithms.png")


if __name__ == "__main__":
    main()
