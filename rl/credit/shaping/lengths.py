"""Rewards that depend on an answer's length in tokens. All functions are pure.

The formulas are those of the papers. If the authors' code differs, an option or another function
computes the code's reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def kimi_length(lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
    """Rewards that fall from 0.5 for a group's shortest answer to -0.5 for the longest.

    Wrong answers get at most 0. The formula is Kimi k1.5's ``0.5 - (len - min) / (max - min)``
    (arXiv:2501.12599, section 2.3.3). If all answers are equally long, all rewards are 0. The paper
    states no weight. open-r1 and open-rs count characters instead of tokens.
    """
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(lengths)
    scaled = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [x if r else min(0.0, x) for x, r in zip(scaled, right, strict=True)]


def overlong(length: int, max_length: int, cache: int) -> float:
    """Reward that is 0 up to ``max_length - cache``, falls to -1 at ``max_length``, and stays -1.

    This is DAPO's soft overlong punishment (arXiv:2503.14476, section 3.4). In verl's
    implementation, the reward falls below -1 beyond ``max_length``.
    """
    return -min(1.0, max(0.0, (length - (max_length - cache)) / cache))


def l1_exact(length: int, budget: int, alpha: float = 0.0003) -> float:
    """Reward of ``-alpha`` per token above or below the budget: L1-Exact (arXiv:2503.04697)."""
    return -alpha * abs(budget - length)


def l1_max(length: int, budget: int, alpha: float = 0.0003, delta: float = 0.5) -> float:
    """Reward of a right answer within a budget: L1-Max (arXiv:2503.04697).

    The reward is ``clip(alpha (budget - length) + delta, 0, 1)``. A wrong answer has reward 0.
    """
    return min(1.0, max(0.0, alpha * (budget - length) + delta))


def l1_max_code(length: int, budget: int, alpha: float = 0.0003) -> float:
    """L1-Max in its authors' code: ``(clip(alpha (budget - length), -1, 1) + 1) / 2``.

    The slope is half the paper's slope, and this reward is added to the 1 of a right answer.
    """
    return (min(1.0, max(-1.0, alpha * (budget - length))) + 1) / 2


def cosine(length: int, max_length: int, start: float, end: float, clamp: bool = True) -> float:
    """Reward that goes from ``start`` at length 0 to ``end`` at ``max_length`` along half a cosine.

    This is open-rs's reward (arXiv:2503.16219). The code of open-rs counts characters and does not
    clamp: beyond ``max_length`` the reward turns back, and reaches ``start`` again at twice that
    length.
    """
    progress = length / max_length
    if clamp:
        progress = min(1.0, progress)
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * progress))
