"""Rewards of an answer's length, in tokens: pure functions.

The formulas are the papers'. If the authors' code differs, an option or another function computes
the code's reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def kimi_length(lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
    """From 0.5 for a group's shortest answer to -0.5 for its longest; wrong answers get at most 0.

    Kimi k1.5 (arXiv:2501.12599, section 2.3.3): ``0.5 - (len - min) / (max - min)``, at most 0 for
    a wrong answer; all 0 where all are equally long. The paper gives no weight. open-r1 and open-rs
    count characters.
    """
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(lengths)
    scaled = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [x if r else min(0.0, x) for x, r in zip(scaled, right, strict=True)]


def overlong(length: int, max_length: int, cache: int) -> float:
    """0 up to ``max_length - cache``, then down to -1 at ``max_length``, and -1 beyond.

    DAPO's soft overlong punishment (arXiv:2503.14476, section 3.4). verl's has no floor.
    """
    return -min(1.0, max(0.0, (length - (max_length - cache)) / cache))


def l1_exact(length: int, budget: int, alpha: float = 0.0003) -> float:
    """Minus ``alpha`` for each token above or below the budget: L1-Exact (arXiv:2503.04697)."""
    return -alpha * abs(budget - length)


def l1_max(length: int, budget: int, alpha: float = 0.0003, delta: float = 0.5) -> float:
    """Reward of a right answer within a budget: L1-Max (arXiv:2503.04697).

    ``clip(alpha (budget - length) + delta, 0, 1)``; a wrong answer has reward 0.
    """
    return min(1.0, max(0.0, alpha * (budget - length) + delta))


def l1_max_code(length: int, budget: int, alpha: float = 0.0003) -> float:
    """L1-Max in its authors' code: ``(clip(alpha (budget - length), -1, 1) + 1) / 2``.

    The slope is half the paper's, and the value is added to the 1 of a right answer.
    """
    return (min(1.0, max(-1.0, alpha * (budget - length))) + 1) / 2


def cosine(length: int, max_length: int, start: float, end: float, clamp: bool = True) -> float:
    """From ``start`` at length 0 to ``end`` at ``max_length``, along half a cosine.

    open-rs (arXiv:2503.16219). Its code counts characters and has no clamp: beyond
    ``max_length`` its value turns back, and is ``start`` again at twice the length.
    """
    progress = length / max_length
    if clamp:
        progress = min(1.0, progress)
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * progress))
