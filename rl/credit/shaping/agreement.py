"""Agreement of a judge with a verifiable outcome that the judge does not see.

Training against a reward model or a judge eventually exploits it: its scores rise while the outcome
falls (Gao et al., Scaling Laws for Reward Model Overoptimization, arXiv 2210.10760). The agreement
falls first, and so gives an early warning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl.credit.shaping.shaping import Weighted
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.metrics.episodes import success_of

Numbers = NDArray[np.float64]


def agreement_metrics(
    shapings: Sequence[Weighted], groups: Sequence[TrajectoryGroup], success_score: str
) -> dict[str, float]:
    """The metrics ``agreement/NAME/pairs`` and ``agreement/NAME/ranks`` of each judging shaping.

    Args:
        shapings: the run's shapings, whose contributions the episodes record.
        groups: a step's episodes.
        success_score: name of the score that is the outcome, or "" for the return.

    Returns:
        The metrics, except those of shapings whose outcomes or judgements are all equal.
    """
    metrics: dict[str, float] = {}
    played = [group.finished for group in groups if group.finished]
    outcomes = [np.array([success_of(t, success_score) for t in part]) for part in played]
    for weighted in shapings:
        name = weighted.shaping.name
        if not weighted.shaping.judges or not played:
            continue
        judged = [np.array([t.shaping[name] for t in part]) for part in played]
        pairs = pair_agreement(judged, outcomes)
        ranks = rank_correlation(np.concatenate(judged), np.concatenate(outcomes))
        found = {"pairs": pairs, "ranks": ranks}
        metrics |= {f"agreement/{name}/{k}": v for k, v in found.items() if v is not None}
    return metrics


def pair_agreement(judged: Sequence[Numbers], outcomes: Sequence[Numbers]) -> float | None:
    """The share of pairs of siblings that the judge orders as their outcomes do.

    Only pairs with different outcomes count. A tie of the judge counts as half.

    Args:
        judged: the judge's scores, an array for each group.
        outcomes: the outcomes of the same members.

    Returns:
        The share, or None if no two siblings have different outcomes.
    """
    agreed, count = 0.0, 0
    for judgements, facts in zip(judged, outcomes, strict=True):
        better = facts[:, None] > facts[None, :]
        count += int(better.sum())
        order = np.sign(judgements[:, None] - judgements[None, :])
        agreed += float((0.5 * (order[better] + 1)).sum())
    return agreed / count if count else None


def rank_correlation(a: Numbers, b: Numbers) -> float | None:
    """Spearman's rank correlation of two arrays, from -1 to 1.

    Equal numbers get the mean of their ranks.

    Returns:
        The correlation, or None if one of the arrays is constant.
    """
    x, y = _ranks(a) - 0.5 * (len(a) + 1), _ranks(b) - 0.5 * (len(b) + 1)
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else None


def _ranks(x: Numbers) -> Numbers:
    _, index, counts = np.unique(x, return_inverse=True, return_counts=True)
    mean_ranks = np.asarray(counts.cumsum() - 0.5 * (counts - 1))
    return np.take(mean_ranks, index)
