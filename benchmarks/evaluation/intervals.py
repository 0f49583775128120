"""Coverage of the intervals of ``rl.eval``, and the power of its paired test, by simulation.

``python benchmarks/evaluation/intervals.py`` writes ``benchmarks/results/evaluation.json``. Each
simulated evaluation draws tasks from a population of success rates (a beta distribution), and the
episodes of each task. An interval covers if it contains the population's true value.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl.evaluation.paired import paired_test
from rl.evaluation.power import power_of
from rl.evaluation.task_interval import task_interval
from rl.run.metrics.intervals import pass_at_k, pass_rate_of_tasks

RESULTS = Path(__file__).parents[1] / "results" / "evaluation.json"
SHIFT = 0.05


@dataclass(frozen=True)
class World:
    """A population of tasks, and an evaluation of it."""

    tasks: int
    episodes: int
    a: float
    b: float
    """Parameters of the beta distribution of the tasks' success rates."""

    def rates(self, rng: np.random.Generator) -> np.ndarray:
        """Success rates of the evaluation's tasks."""
        return rng.beta(self.a, self.b, self.tasks)

    def play(self, rates: np.ndarray, rng: np.random.Generator) -> list[list[float]]:
        """The success of each task's episodes."""
        drawn = rng.random((len(rates), self.episodes)) < rates[:, None]
        return drawn.astype(float).tolist()


WORLDS = [
    World(tasks, episodes, a, b)
    for tasks in (30, 100)
    for episodes in (1, 8)
    for a, b in ((2.0, 2.0), (0.5, 1.0))
]


TASKS, EPISODES = (20, 50, 150, 500), (4, 16, 64)
POPULATIONS = ((2.0, 2.0), (0.5, 1.0), (0.5, 0.5), (0.2, 1.0), (5.0, 1.0), (1.0, 20.0))
"""Beta distributions: tasks of medium difficulty; mostly hard; easy or hard; many impossible;
mostly easy; all hard."""


def pass_at(world: World, k: int) -> float:
    """The population's pass@k: 1 - E[(1 - p)^k] of a beta distribution."""
    log = math.lgamma(world.b + k) + math.lgamma(world.a + world.b)
    return 1 - math.exp(log - math.lgamma(world.b) - math.lgamma(world.a + world.b + k))


def covered(world: World, rng: np.random.Generator) -> dict[str, bool]:
    """Which intervals of one simulated evaluation cover."""
    rates = world.rates(rng)
    by_task = world.play(rates, rng)
    rate = pass_rate_of_tasks(by_task)
    mean = world.a / (world.a + world.b)
    found = {"success": rate.low <= mean <= rate.high}
    # A second model, better by SHIFT where the rate allows it.
    better = np.minimum(rates + 2 * SHIFT * (rng.random(world.tasks) < 0.5), 1.0)
    test = paired_test(world.play(better, rng), by_task)
    found["difference"] = test.low <= true_shift(world) <= test.high
    return found


def coverage_of_pass(world: World, k: int, evaluations: int) -> float:
    """The share of simulated evaluations whose interval of pass@k has the true value."""
    rng = np.random.default_rng((world.tasks, world.episodes, k))
    rates = rng.beta(world.a, world.b, (evaluations, world.tasks))
    values = np.array([pass_at_k(world.episodes, c, k) for c in range(world.episodes + 1)])
    true = pass_at(world, k)
    bounds = (task_interval(row) for row in values[rng.binomial(world.episodes, rates)])
    return float(np.mean([low <= true <= high for low, high in bounds]))


def exact_coverage(world: World) -> float:
    """The coverage of pass@k with k = episodes: each task is right with the same chance."""
    n, p = world.tasks, pass_at(world, world.episodes)
    total = 0.0
    for right in range(n + 1):
        low, high = task_interval([1.0] * right + [0.0] * (n - right))
        if low <= p <= high:
            total += math.comb(n, right) * p**right * (1 - p) ** (n - right)
    return total


def grid(evaluations: int) -> Iterator[dict[str, float]]:
    """The coverage of pass@k for all populations, numbers of tasks, episodes and k."""
    for tasks, episodes, (a, b) in itertools.product(TASKS, EPISODES, POPULATIONS):
        world = World(tasks, episodes, a, b)
        for k in sorted({1, episodes // 4, episodes - 1}):
            yield _cell(world, k, coverage_of_pass(world, k, evaluations))
        yield _cell(world, episodes, exact_coverage(world))


def _cell(world: World, k: int, covered: float) -> dict[str, float]:
    return {**vars(world), "k": k, "true": round(pass_at(world, k), 4), "covered": covered}


def true_shift(world: World) -> float:
    """The population's mean of ``min(p + 2 SHIFT, 1) - p`` for half of the tasks."""
    edges = np.linspace(0, 1, 200_001)
    p = (edges[1:] + edges[:-1]) / 2
    density = p ** (world.a - 1) * (1 - p) ** (world.b - 1)
    return float(0.5 * np.average(np.minimum(2 * SHIFT, 1 - p), weights=density))


def planted(world: World, rng: np.random.Generator) -> dict[str, bool]:
    """Whether the paired test finds a planted difference, and a difference of 0."""
    rates = world.rates(rng) * (1 - SHIFT)
    same, plus = world.play(rates, rng), world.play(rates + SHIFT, rng)
    null = world.play(rates, rng)
    return {
        "found": not paired_test(plus, same).is_noise,
        "false alarm": not paired_test(null, same).is_noise,
    }


def share(
    draw: Callable[[World, np.random.Generator], dict[str, bool]],
    world: World,
    evaluations: int,
) -> dict[str, float]:
    """The share of simulated evaluations for which each statement is true."""
    rng = np.random.default_rng(7)
    drawn = [draw(world, rng) for _ in range(evaluations)]
    return {name: float(np.mean([one[name] for one in drawn])) for name in drawn[0]}


def announced_power(world: World, evaluations: int) -> float:
    """The power for SHIFT that the deviation of the differences announces, by simulation."""
    rng = np.random.default_rng(8)
    deviations = []
    for _ in range(evaluations):
        rates = world.rates(rng) * (1 - SHIFT)
        first, second = world.play(rates + SHIFT, rng), world.play(rates, rng)
        differences = np.mean(first, axis=1) - np.mean(second, axis=1)
        deviations.append(float(np.std(differences, ddof=1)))
    return power_of(SHIFT, float(np.sqrt(np.mean(np.square(deviations)))), world.tasks)


def power_worlds() -> Iterator[World]:
    """Evaluations for which +5 points are easy and hard to find."""
    for tasks, episodes in ((200, 1), (800, 1), (200, 8)):
        yield World(tasks, episodes, 2.0, 2.0)


def _one_line(cell: re.Match[str]) -> str:
    return "{" + " ".join(cell[1].split()) + "}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    coverage = []
    for world in WORLDS:
        row = {**vars(world), **share(covered, world, args.evaluations)}
        coverage.append(row)
        print(json.dumps(row), flush=True)
    powers = []
    for world in power_worlds():
        announced = announced_power(world, 100)
        row = {**vars(world), "shift": SHIFT, "announced power": announced}
        row |= share(planted, world, args.evaluations)
        powers.append(row)
        print(json.dumps(row), flush=True)
    report = {"evaluations": args.evaluations, "coverage": coverage, "power": powers}
    report |= {"pass@k": [*grid(2 * args.evaluations)]}
    lines = json.dumps(report, indent=2)
    # A cell of the grid is one line.
    lines = re.sub(r"\{\s+(\"tasks\"[^}]*\"covered\"[^}]*?)\s+\}", _one_line, lines)
    args.out.write_text(lines + "\n")


if __name__ == "__main__":
    main()
