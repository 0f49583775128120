"""The 95% interval of a mean over tasks, for pass@k, maj@k and best@k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl.evaluation import SEED

DRAWS = 2000
"""Number of random weightings of the tasks."""
PRIOR = 0.5
"""Weight of an unseen right task, and of an unseen wrong task, in observed tasks."""


def task_interval(values: Sequence[float], seed: int = SEED) -> tuple[float, float]:
    """The 95% interval of the mean of ``values``, one value for each task.

    This is the Bayesian bootstrap over tasks (Rubin 1981, Annals of Statistics 9, p. 130): each
    draw weights the tasks at random (a flat Dirichlet distribution). Only tasks are resampled,
    because only tasks are independent. Half a right and half a wrong task are added. Without them,
    tasks that are almost all right would hide the rare wrong task of the population. The half that
    no observed task resembles widens the interval on its own side only: if each task is right once,
    the half wrong task does not lower the upper bound.

    With k equal to the number of episodes, each task is right or wrong. The interval is then
    Jeffreys's, which Brown, Cai and DasGupta recommend (2001, Statistical Science 16, p. 101).

    Args:
        values: a number from 0 to 1 for each task.
        seed: the seed of the weights.

    Returns:
        The lower and the upper bound. With fewer than two tasks, the interval is [0, 1].

    Example:
        >>> low, high = task_interval([0.2, 0.4, 0.6, 0.8])
        >>> low < 0.5 < high
        True
    """
    if len(values) < 2:
        return 0.0, 1.0
    # Rounding of means may leave the range by a little.
    known = np.clip(np.asarray(values, dtype=float), 0.0, 1.0)
    points, counts = np.unique(np.append(known, (0.0, 1.0)), return_counts=True)
    shapes = counts.astype(float)
    shapes[[0, -1]] += PRIOR - 1
    weights = np.random.default_rng(seed).standard_gamma(shapes, (DRAWS, len(points)))
    some_wrong, some_right = known.min() == 0, known.max() == 1
    below, above = slice(0, None if some_right else -1), slice(0 if some_wrong else 1, None)
    bounds = [
        np.quantile(weights[:, part] @ points[part] / weights[:, part].sum(axis=1), share)
        for part, share in ((below, 0.025), (above, 0.975))
    ]
    # Tasks that are all wrong, or all right, show no distance from 0, or from 1.
    return float(bounds[0]) if known.any() else 0.0, float(bounds[1]) if known.min() < 1 else 1.0
