"""A software task that a small model learns on two cores, and the value of what it reads.

    python -m benchmarks.learning.software [--seeds 0 1 2] [--jobs 2] [--out FOLDER]

Each run is ``python -m rl.train env=swe-mini`` with model=tiny in its own process, including its
warm start. Success is measured on test tasks, on which no choice depends. Then the best weights of
each seed play the same test tasks twice, once with the results of tools and once with "?" in place
of their letters and digits; the difference is paired by task. Writes FOLDER/software.json and
prints one line for each run. A run whose folder is complete is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.learning.runs import last_turn_passes
from benchmarks.train_runs import finished_run, train_run
from rl.run.folder import versions

ENV = ["env=swe-mini", "env.files=1", "env.tools=read, fix", "env.max_turns=4"]
ENV += ["env.instructions=False"]
TRAIN = [*ENV, "steps=40"]
TASKS = 512


def learned(seed: int, folder: Path) -> dict[str, Any]:
    """One run: test success before and after, and the last turns with blanked results."""
    result = train_run(f"software-{seed}", [*TRAIN, f"seed={seed}"], folder)
    return {"seed": seed, **result, "results": value_of_results(seed, folder)}


def value_of_results(seed: int, folder: Path) -> dict[str, Any]:
    """Success of the best weights with results and with blanked ones, paired by task."""
    model = folder / f"software-{seed}" / "checkpoints" / "best"
    passes = {}
    for feedback in ("results", "blank"):
        out = folder / f"software-{feedback}-{seed}"
        words = [*ENV, f"env.feedback={feedback}", f"model={model}", f"seed={seed}"]
        finished_run("rl.eval", [*words, f"tasks={TASKS}"], out)
        passes[feedback] = last_turn_passes(out / "trajectories.jsonl.gz")
    tasks = sorted(passes["results"].keys() & passes["blank"].keys())
    gains = [passes["results"][task] - passes["blank"][task] for task in tasks]
    half = 1.96 * stdev(gains) / len(gains) ** 0.5
    return {
        "shown": fmean(passes["results"].values()),
        "blank": fmean(passes["blank"].values()),
        "gain": [fmean(gains), fmean(gains) - half, fmean(gains) + half],
        "tasks": len(tasks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each on one core")
    parser.add_argument("--out", type=Path, default=Path("runs/software"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def one(seed: int) -> dict[str, Any]:
        result = learned(seed, options.out)
        shown = {key: result[key] for key in ("seed", "before", "after", "results", "seconds")}
        sys.stdout.write(json.dumps(shown) + "\n")
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(one, options.seeds))
    record = {"runs": results, "cores": os.cpu_count(), **versions()}
    (options.out / "software.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
