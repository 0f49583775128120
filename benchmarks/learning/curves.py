"""Learning curves of four environments over seeds, and the effect of masking observations.

    python -m benchmarks.learning.curves [--rows search math ...] [--seeds 0 1 2 ...] [--jobs 2]
                                         [--out FOLDER] [--set key=value ...]

Each run is ``python -m rl.train`` with model=tiny in its own process, including its warm start.
Success is measured on test tasks, on which no choice depends. The rows ``search`` and
``search-unmasked`` differ in one setting: whether observations (results of searches) are trained as
if the policy had sampled them. Both share the warm start of each seed, so they are compared by
seed. Writes FOLDER/learning_curves.json and FOLDER/learning-curves.png, and prints one line for
each run. A run whose folder is complete is not repeated.
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

SEARCH = ["env=search-qa", "env.hops=2", "steps=40"]
ROWS = {
    "search": SEARCH,
    "search-unmasked": [*SEARCH, "algo.mask_observations=False"],
    "knights-knaves": ["env=knights-knaves", "steps=40", "tiny.batch_size=16", "tiny.steps=1800"],
    "mastermind": ["env=mastermind", "steps=40", "prompts=16", "tiny.steps=600"],
    "math": ["env=math"],
}
SEEDS = {"search": 5, "search-unmasked": 5}
"""Default number of seeds of the studies for which it is not three."""


def run(row: str, seed: int, folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """One run: test success before and after, and the curve of its validation."""
    words = [*ROWS[row], f"seed={seed}", *extra]
    return {"row": row, "seed": seed, **train_run(f"{row}-{seed}", words, folder)}


def masking(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Test success with the mask minus without, by seed, and its mean with a 95% t-interval."""
    after = {(r["row"], r["seed"]): r["after"][0] for r in results}
    seeds = sorted(seed for row, seed in after if row == "search-unmasked")
    gains = [after["search", s] - after["search-unmasked", s] for s in seeds]
    low, high = stats.t.interval(0.95, len(gains) - 1, fmean(gains), stats.sem(gains))
    return {
        "seeds": seeds,
        "masked": [after["search", s] for s in seeds],
        "unmasked": [after["search-unmasked", s] for s in seeds],
        "gain": [fmean(gains), low, high],
    }


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel a row: validation success of each seed, and their mean."""
    rows = [row for row in ROWS if any(r["row"] == row for r in results)]
    figure = Figure(figsize=(3.2 * len(rows), 3.0), dpi=120)
    FigureCanvasAgg(figure)
    for number, row in enumerate(rows, 1):
        axes = figure.add_subplot(1, len(rows), number)
        curves = [r["validation"] for r in results if r["row"] == row]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color="#9db4c0", linewidth=1)
        steps = zip(*curves, strict=True)
        means = [(points[0][0], fmean(success for _, success in points)) for points in steps]
        axes.plot(*zip(*means, strict=True), color="#1f5673", linewidth=2, marker="o", markersize=3)
        axes.set(title=f"{row}, {len(curves)} seeds", xlabel="learner updates", ylim=(0, 1))
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("success on validation tasks")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: five of search, else three")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each on one core")
    parser.add_argument("--out", type=Path, default=Path("runs/learning-curves"))
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def one(choice: tuple[str, int]) -> dict[str, Any]:
        row, seed = choice
        result = run(row, seed, options.out, options.set)
        shown = {k: result[k] for k in ("row", "seed", "before", "after", "seconds")}
        sys.stdout.write(json.dumps(shown) + "\n")
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        choices = [
            (row, seed)
            for row in options.rows
            for seed in options.seeds or range(SEEDS.get(row, 3))
        ]
        results = list(pool.map(one, choices))
    record: dict[str, Any] = {"runs": results, "cores": os.cpu_count(), **versions()}
    if {"search", "search-unmasked"} <= set(options.rows) and len({s for _, s in choices}) > 1:
        record["masking"] = masking(results)
        sys.stdout.write(json.dumps(record["masking"]) + "\n")
    (options.out / "learning_curves.json").write_text(json.dumps(record, indent=2) + "\n")
    draw(results, options.out / "learning-curves.png")


if __name__ == "__main__":
    main()
