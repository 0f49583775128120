"""pass@k, best-of-n and the spread over passes: rates of several attempts at each task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from rl.evaluation.task_interval import task_interval
from rl.run.metrics.intervals import PassRate, pass_at_k, pass_rate_of_tasks

MOST = 256
"""The largest k that is reported by default."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95% interval for the population of such tasks."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to ``most``."""
    return [2**i for i in range(most.bit_length())]


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one value for each task, with its interval clustered by task."""
    return Estimate(fmean(values), *task_interval(values))


def pass_curve(counts: Sequence[tuple[int, int]], ks: Iterable[int]) -> dict[int, Estimate]:
    """pass@k for each k: the chance that at least one of k episodes of a task is right.

    Each task's estimate is unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Args:
        counts: for each task the number of episodes, and how many of them are right.
        ks: values of k, each at most the smallest number of episodes.

    Raises:
        ValueError: a k is below 1 or above the episodes of a task.

    Example:
        >>> round(pass_curve([(10, 3), (10, 3)], [5])[5].value, 7)
        0.9166667
    """
    return {k: estimate([pass_at_k(n, c, k) for n, c in counts]) for k in ks}


def best_of_n(scores: Sequence[float], successes: Sequence[float], n: int) -> float:
    """The expected success of the episode with the highest score among n episodes.

    The expectation is exact: it is the mean over all subsets of n of a task's episodes. Episodes
    with equal scores are chosen with equal chance.

    Args:
        scores: a reward model's score of each episode of a task.
        successes: the success of each episode.
        n: number of episodes to choose from.

    Raises:
        ValueError: n is below 1 or above the number of episodes.

    Example:
        >>> best_of_n([0.1, 0.9, 0.5], [0, 1, 0], 2)
        0.6666666666666666
    """
    count = len(scores)
    if not 1 <= n <= count:
        raise ValueError(f"n ({n}) must be from 1 to the number of episodes ({count})")
    total, below = 0.0, 0
    ordered = sorted(zip(scores, successes, strict=True), key=lambda pair: pair[0])
    for _, tied in groupby(ordered, key=lambda pair: pair[0]):
        rewards = [success for _, success in tied]
        up_to = below + len(rewards)
        # Subsets whose highest score is this one.
        chosen = math.comb(up_to, n) - math.comb(below, n)
        total += fmean(rewards) * chosen / math.comb(count, n)
        below = up_to
    return total


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of the success over passes through all tasks."""

    mean: float
    std: float
    """Standard deviation over passes, with the divisor (passes - 1)."""
    low: float
    high: float
    passes: int


def spread_over_passes(by_task: Sequence[Sequence[float]]) -> Spread | None:
    """The mean success of each pass through the tasks, and the standard deviation over passes.

    The first episode of each task makes the first pass, and so on. The spread says how much one
    published number would change with another sampling seed, on the same tasks.

    Returns:
        The spread, or None with fewer than two complete passes.
    """
    passes = [fmean(column) for column in zip(*by_task, strict=False)]
    if len(passes) < 2:
        return None
    return Spread(fmean(passes), stdev(passes), min(passes), max(passes), len(passes))


def within_tokens(
    tokens: Sequence[Sequence[int]], successes: Sequence[Sequence[float]], budgets: Iterable[int]
) -> dict[int, PassRate]:
    """The mean success if an episode that needs more tokens than a budget counts as 0.

    The intervals are those of the success, clustered by task.

    Args:
        tokens: number of sampled tokens of each episode, one list for each task.
        successes: the success of each episode, one list for each task.
        budgets: numbers of tokens.

    Raises:
        ValueError: there is no episode.

    Example:
        >>> {b: found.rate for b, found in within_tokens([[10, 30]], [[1.0, 1.0]], [8, 32]).items()}
        {8: 0.0, 32: 1.0}
    """
    pairs = [list(zip(*task, strict=True)) for task in zip(tokens, successes, strict=True)]
    return {
        budget: pass_rate_of_tasks(
            [[success if used <= budget else 0.0 for used, success in task] for task in pairs]
        )
        for budget in budgets
    }
