"""Coverage of the intervals of paired differences in pass@k, by simulation.

``python -m benchmarks.evaluation.paired_pass`` writes ``benchmarks/results/paired_pass.json``. Each
simulated evaluation draws tasks from a population of success rates (a beta distribution), and the
episodes of two models on each task. The second model is better in one of two ways (``CHANGES``).
An interval covers if it contains the population's true difference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import numpy as np

from rl.evaluation.paired import paired_pass_test

RESULTS = Path(__file__).parents[1] / "results" / "paired_pass.json"
TASKS, EPISODES = (20, 50, 150), (4, 16)
POPULATIONS = ((2.0, 2.0), (0.5, 1.0), (0.5, 0.5), (0.2, 1.0), (5.0, 1.0), (1.0, 20.0))
"""Beta distributions: tasks of medium difficulty; mostly hard; easy or hard; many impossible;
mostly easy; all hard."""
CHANGES = {"half": (0.5, 0.1), "few": (0.05, 1.0)}
"""The share of tasks, drawn at random, on which the second model is better, and by how much. No
success rate is above 1, so that "few" tasks become certain."""
DRAWS = 200_000
"""Number of tasks from which the true difference is computed."""


def coverage(
    tasks: int, episodes: int, population: tuple[float, float], k: int, change: str, count: int
) -> dict[str, object]:
    """The share of ``count`` simulated evaluations whose interval has the true difference."""
    share, gain = CHANGES[change]
    drawn = np.random.default_rng(1).beta(*population, DRAWS)
    better = np.minimum(drawn + gain, 1.0)
    true = share * float(np.mean((1 - drawn) ** k - (1 - better) ** k))
    rng = np.random.default_rng((tasks, episodes, k))
    covered = 0
    for _ in range(count):
        rates = rng.beta(*population, tasks)
        changed = np.minimum(rates + gain * (rng.random(tasks) < share), 1.0)
        first, second = (
            [(episodes, int(right)) for right in rng.binomial(episodes, p)]
            for p in (changed, rates)
        )
        test = paired_pass_test(first, second, k)
        covered += test.low <= true <= test.high
    shape = {"tasks": tasks, "episodes": episodes, "population": list(population), "k": k}
    return {**shape, "change": change, "true": round(true, 5), "covered": covered / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    cells = []
    for change, tasks, episodes in itertools.product(CHANGES, TASKS, EPISODES):
        for population in POPULATIONS:
            for k in sorted({1, 2, math.ceil(episodes / 4), episodes}):
                world = (tasks, episodes, population, k, change)
                cells.append(coverage(*world, args.evaluations))
                print(json.dumps(cells[-1]), flush=True)
    lines = ",\n".join(f"    {json.dumps(one)}" for one in cells)
    text = f'{{\n  "evaluations": {args.evaluations},\n  "cells": [\n{lines}\n  ]\n}}\n'
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
