"""Paired tests of two models that played the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean, stdev

import numpy as np

from rl.evaluation import SEED
from rl.evaluation.power import LEVEL, detectable_difference
from rl.evaluation.student import t_cdf, t_quantile
from rl.run.metrics.intervals import pass_at_k

FLIPS = 20_000
"""Number of random sign flips, where the permutation test is not exact."""
_FEW = 14
"""With at most this many differing tasks, all sign flips are enumerated."""
_MOST_WORK = 10**8
"""Maximum number of additions for the exact distribution of a sum."""
_FINEST = 10**6
"""Differences that are multiples of something finer are tested by random sign flips."""
_CLOSE = 1e-9
_LEAST_ADDED = 0.35
"""Least difference of the two tasks that an interval adds to the observed ones. One right answer of
many is too small for them. If the second model is better on one task in twenty, which few
evaluations see, intervals of 20 tasks had the truth in 67% of evaluations, and in 88% with this
value (``benchmarks/evaluation/paired_pass.py``)."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The difference of two models' success on the same tasks."""

    difference: float
    """Mean over tasks of the first model's success minus the second model's."""
    low: float
    high: float
    """The 95% interval of the difference, clustered by task. It contains 0 if the difference is
    within noise."""
    p_value: float
    """Two-sided p-value of the sign-flip permutation test."""
    method: str
    """How the p-value was computed: "exact", or "N sign flips, seed S"."""
    tasks: int
    differing: int
    """Number of tasks on which the models differ."""
    deviation: float
    """Standard deviation of the tasks' differences."""
    detectable: float
    """The smallest true difference that a test of these tasks finds with 80% power."""

    @property
    def is_noise(self) -> bool:
        """Whether the difference is within noise: the test does not reject equality at 5%."""
        return self.p_value >= LEVEL


def paired_test(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], seed: int = SEED
) -> PairedTest:
    """Test whether two models have the same success on the same tasks.

    Only tasks are independent, so the test compares the models' means on each task. Under equality,
    the sign of each task's difference is a fair coin. With one episode per task and success 0 or 1,
    the exact test is McNemar's exact test.

    Args:
        first: successes of the first model's episodes, one list for each task.
        second: successes of the second model's episodes, for the same tasks in the same order.
        seed: seed of the sign flips, where the test is not exact.

    Raises:
        ValueError: the numbers of tasks differ, there are fewer than two tasks, or a task has no
            episode.

    Example:
        >>> paired_test([[1.0]] * 6 + [[0.0]] * 4, [[0.0]] * 10).p_value
        0.03125
    """
    if len(first) != len(second):
        raise ValueError(f"the models played {len(first)} and {len(second)} tasks: play the same")
    if len(first) < 2 or not all(map(len, (*first, *second))):
        raise ValueError("a paired test needs at least two tasks with episodes of both models")
    differences = [fmean(a) - fmean(b) for a, b in zip(first, second, strict=True)]
    sizes = {len(episodes) for episodes in (*first, *second)}
    bound = 1.0 if _is_share(first, second) else math.inf
    return _test(differences, math.lcm(*sizes), 1 / min(sizes), bound, seed)


def paired_pass_test(
    first: Sequence[tuple[int, int]],
    second: Sequence[tuple[int, int]],
    k: int,
    seed: int = SEED,
) -> PairedTest:
    """Test whether two models have the same pass@k on the same tasks.

    The test compares the models' unbiased estimates of pass@k on each task, as :func:`paired_test`
    compares their mean successes. With k = 1 both are the same test.

    Args:
        first: for each task the number of the first model's episodes, and how many are right.
        second: the same for the second model.
        k: number of attempts, at most the smallest number of episodes.
        seed: seed of the sign flips, where the test is not exact.

    Raises:
        ValueError: the numbers of tasks differ, there are fewer than two tasks, or k is not from 1
            to the number of episodes.

    Example:
        >>> paired_pass_test([(4, 4)] * 6 + [(4, 0)] * 4, [(4, 0)] * 10, 2).difference
        0.6
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            f"the models played {len(first)} and {len(second)} tasks: play the same, at least two"
        )
    pairs = zip(first, second, strict=True)
    differences = [pass_at_k(*ours, k) - pass_at_k(*theirs, k) for ours, theirs in pairs]
    sizes = {episodes for episodes, _ in (*first, *second)}
    # pass@k is a multiple of 1 / C(n, k). One right episode at a task without one adds k / n.
    scale = math.lcm(*(math.comb(episodes, k) for episodes in sizes))
    return _test(differences, scale if scale <= _FINEST else 1, k / min(sizes), 1.0, seed)


def _test(
    differences: Sequence[float], scale: int, step: float, bound: float, seed: int
) -> PairedTest:
    """The test of the tasks' differences.

    Args:
        differences: the difference of each task.
        scale: all differences are multiples of ``1 / scale``, or ``scale`` is 1.
        step: the difference that one more right episode makes at a task without one.
        bound: the largest possible difference.
        seed: seed of the sign flips, where the test is not exact.
    """
    p_value, method = sign_flip_test(differences, scale, seed)
    # Bonett and Price 2012 (J. Educ. Behav. Stat. 37, p. 479) add two tasks that differ by one
    # right answer either way. Otherwise rare differences give intervals that are too narrow.
    added = max(step, _LEAST_ADDED)
    widened = [*differences, added, -added]
    n, centre = len(widened), fmean(widened)
    deviation = stdev(widened)
    half = t_quantile(0.975, n - 1) * deviation / math.sqrt(n)
    low, high = centre - half, centre + half
    if p_value >= LEVEL:
        # Few tasks have few sign flips, and the test then rejects later than Student's t.
        low, high = min(low, 0.0), max(high, 0.0)
    return PairedTest(
        difference=fmean(differences),
        low=max(-bound, low),
        high=min(bound, high),
        p_value=p_value,
        method=method,
        tasks=len(differences),
        differing=sum(abs(d) > _CLOSE for d in differences),
        deviation=deviation,
        detectable=detectable_difference(deviation, len(differences)),
    )


def _is_share(*models: Sequence[Sequence[float]]) -> bool:
    return all(0 <= value <= 1 for model in models for task in model for value in task)


def sign_flip_test(
    differences: Sequence[float], scale: int = 1, seed: int = SEED
) -> tuple[float, str]:
    """The two-sided p-value of the sign-flip permutation test, and how it was computed.

    The p-value is the share of all assignments of signs whose sum is at least as far from 0 as the
    observed sum. It is exact if few tasks differ, or if all differences are multiples of
    ``1 / scale``. Otherwise random flips estimate it (Phipson and Smyth 2010, equation 2).

    Args:
        differences: the difference on each task.
        scale: the least common multiple of the numbers of episodes.
        seed: seed of the random flips.
    """
    sizes = np.array([abs(d) for d in differences if abs(d) > _CLOSE])
    observed = abs(math.fsum(differences)) - _CLOSE * max(1.0, float(sizes.sum()))
    if len(sizes) <= _FEW:
        sums = np.zeros(1)
        for size in sizes:
            sums = np.concatenate([sums + size, sums - size])
        return float(np.mean(np.abs(sums) >= observed)), "exact"
    steps = np.rint(sizes * scale).astype(int)
    is_grid = bool(np.allclose(steps, sizes * scale, rtol=0, atol=1e-6))
    if is_grid and len(steps) * int(steps.sum()) <= _MOST_WORK:
        chance = _sum_distribution(steps.tolist())
        sums = np.abs(2 * np.arange(len(chance)) - int(steps.sum())) / scale
        return min(1.0, float(chance[sums >= observed].sum())), "exact"
    rng = np.random.default_rng(seed)
    extreme = 0
    for _ in range(FLIPS // 1000):
        signs = 2 * rng.integers(0, 2, size=(1000, len(sizes))) - 1
        extreme += int(np.sum(np.abs(signs @ sizes) >= observed))
    return (extreme + 1) / (FLIPS + 1), f"{FLIPS} sign flips, seed {seed}"


def _sum_distribution(steps: Sequence[int]) -> np.ndarray:
    """The probability of each sum, if each step is in the sum with probability one half."""
    chance = np.zeros(sum(steps) + 1)
    chance[0] = 1.0
    for step in steps:
        moved = np.zeros_like(chance)
        moved[step:] = chance[: len(chance) - step]
        chance = (chance + moved) / 2
    return chance


def t_test(differences: Sequence[float]) -> tuple[float, float]:
    """Student's t of paired differences, and the one-sided p-value that their mean is above 0.

    *A Sober Look* reports this test (arXiv 2504.07086).

    Raises:
        ValueError: there are fewer than two differences, or all are equal.
    """
    n = len(differences)
    if n < 2 or stdev(differences) == 0:
        raise ValueError("a t-test needs at least two differences that are not all equal")
    t = fmean(differences) / (stdev(differences) / math.sqrt(n))
    return t, t_cdf(-t, n - 1)


def signed_rank_test(differences: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's signed-rank sum, and the one-sided p-value that differences are above 0.

    Differences of 0 are dropped, and equal sizes share their mean rank. The p-value is exact for up
    to 463 other differences; for more it is that of the normal approximation. *A Sober Look*
    reports this test (arXiv 2504.07086).
    """
    kept = sorted((abs(d), d > 0) for d in differences if abs(d) > _CLOSE)
    # Twice the rank, which is a whole number for tied sizes as well.
    doubled: list[int] = []
    for _, group in groupby(kept, key=lambda pair: round(pair[0] / _CLOSE)):
        size = len(list(group))
        doubled += [2 * len(doubled) + size + 1] * size
    observed = sum(rank for rank, (_, positive) in zip(doubled, kept, strict=True) if positive)
    if len(doubled) * sum(doubled) > _MOST_WORK:
        # The sum's mean is half of all ranks, its variance a quarter of their squares. The
        # continuity correction is half the distance between possible sums.
        mean = (sum(doubled) + math.gcd(*doubled)) / 2
        z = (observed - mean) / math.sqrt(sum(rank * rank for rank in doubled) / 4)
        return observed / 2, NormalDist().cdf(-z)
    chance = _sum_distribution(doubled)
    return observed / 2, min(1.0, float(chance[observed:].sum()))
