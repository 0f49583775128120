"""Learning curves: which checkpoints are measured, and what all seeds say together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from .harness import Point
from .job import Job


def chosen(points: Sequence[Point], marks: Sequence[float], job: Job) -> list[tuple[float, Point]]:
    """For each mark, a share of the budget, the newest checkpoint that was handed in before it.

    A mark before the first checkpoint has none and is left out: its weights are those of the start.
    """
    found = []
    for mark in marks:
        before = [point for point in points if _spent(point, job) <= mark + 1e-9]
        if before:
            found.append((mark, before[-1]))
    return found


def _spent(point: Point, job: Job) -> float:
    """The share of the budget that was spent at a checkpoint."""
    shares = [0.0]
    if job.tokens:
        shares.append(point.tokens / job.tokens)
    if job.seconds:
        shares.append(point.seconds / job.seconds)
    return max(shares)


def summary(
    before: float, runs: Sequence[Mapping[str, Any]], marks: Sequence[float]
) -> dict[str, Any]:
    """The curve over seeds, and the mean over the curve.

    Returns:
        For each mark, the mean success of all seeds and its 95% interval (Student's t over seeds);
        "area", the mean of a seed's curve, whose first point is the start; and "final".
    """
    curves = [_filled(before, run["curve"], marks) for run in runs]
    areas = [_area(before, curve) for curve in curves]
    return {
        "curve": [
            {"mark": mark, **_over_seeds([curve[i] for curve in curves])}
            for i, mark in enumerate(marks)
        ],
        "area": _over_seeds(areas),
        "final": _over_seeds([curve[-1] for curve in curves]),
        "seconds": fmean(run["seconds"] for run in runs),
        "tokens": fmean(run["tokens"] for run in runs),
        "peak_mib": max(run["peak_mib"] for run in runs),
        "peak_gpu_mib": max(run["peak_gpu_mib"] for run in runs),
    }


def _filled(
    before: float, curve: Sequence[Mapping[str, Any]], marks: Sequence[float]
) -> list[float]:
    """A success for each mark; before the first checkpoint it is that of the start."""
    by_mark = {point["mark"]: point["success"] for point in curve}
    return [by_mark.get(mark, before) for mark in marks]


def _area(before: float, curve: Sequence[float]) -> float:
    """The mean of the curve by the trapezoidal rule, with the start at 0."""
    values = [before, *curve]
    return fmean((a + b) / 2 for a, b in itertools.pairwise(values))


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, with its 95% interval; a single seed has none."""
    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean}
    half = t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}
