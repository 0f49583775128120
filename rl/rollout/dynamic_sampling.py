"""Which groups an update learns from: those whose returns differ, or differ the most.

Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): where all returns of a group are equal,
every advantage is 0. Such groups are left out of the update, and as many other tasks are drawn,
until the batch is full or the draws are used up. Each draw is waited for as a whole: an episode
that takes long is as welcome as a quick one. Rollouts beside learning draw by places of an update
instead, see :mod:`rl.rollout.async_rollouts`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import pstdev

from rl.rollout.trajectory import TrajectoryGroup

Draw = Callable[[int, int], Awaitable[list[TrajectoryGroup]]]
"""From how many groups, and the draw's number counted from 0, to the groups."""


async def fill(draw: Draw, count: int, max_draws: int) -> list[TrajectoryGroup]:
    """Draw groups until ``count`` of them teach something.

    Args:
        draw: plays new tasks.
        count: groups of an update.
        max_draws: the bound; 1 takes the first draw as it is.

    Returns:
        Every group that was played, in the order of the draws.
    """
    played = await draw(count, 0)
    for number in range(1, max_draws):
        missing = count - sum(not group.is_constant for group in played)
        if missing == 0:
            break
        played = played + await draw(missing, number)
    return played


def drop_uninformative(
    groups: Sequence[TrajectoryGroup], count: int, max_draws: int, keep: float
) -> None:
    """Mark the groups of a step that its update does not learn from as ``dropped``.

    Where draws were used up, the others are fewer than ``count``; where no group of any draw
    teaches anything, they are the first draw's.

    Args:
        groups: all that were played for the step, in the order of the draws.
        count: groups of an update.
        max_draws: 1 for no dynamic sampling.
        keep: the share for :func:`keep_widest`.
    """
    for group in groups:
        group.dropped = max_draws > 1 and group.is_constant
    if all(group.dropped for group in groups):
        for group in groups[:count]:
            group.dropped = False
    if keep < 1:
        keep_widest(groups, keep)


def keep_widest(groups: Sequence[TrajectoryGroup], share: float) -> None:
    """Mark as ``dropped`` all but the groups whose returns have the greatest standard deviation.

    StarPO-S's filter of prompts (RAGEN, arXiv:2504.20073, section 4.2), which keeps a quarter.

    Args:
        groups: of a step; those that are dropped already do not count.
        share: of them to keep, rounded up.
    """
    left = [group for group in groups if not group.dropped]
    spreads = [pstdev([t.reward for t in group.finished] or [0.0]) for group in left]
    widest = sorted(range(len(left)), key=lambda i: -spreads[i])
    for place in widest[math.ceil(share * len(left)) :]:
        left[place].dropped = True
