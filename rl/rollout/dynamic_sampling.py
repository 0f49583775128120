"""Choice of the groups from which an update learns.

If all returns of a group are equal, every advantage is 0. With dynamic sampling (DAPO,
arXiv:2503.14476, section 3.2), the update leaves such groups out. For each of them, another task is
drawn, until the batch is full or ``max_draws`` is reached. A draw completes before the next one
starts, so that slow episodes are not under-represented. Asynchronous rollouts replace single groups
instead, see :mod:`rl.rollout.async_rollouts`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import pstdev

from rl.rollout.trajectory import TrajectoryGroup

Draw = Callable[[int, int], Awaitable[list[TrajectoryGroup]]]
"""Function that plays groups, called with their number and the index of the draw."""


async def fill(draw: Draw, count: int, max_draws: int) -> list[TrajectoryGroup]:
    """Draw groups until ``count`` of them have different returns.

    Args:
        draw: plays new tasks.
        count: number of groups of an update.
        max_draws: maximum number of draws. With 1, the first draw is final.

    Returns:
        All played groups, in the order of the draws.
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
    """Mark the groups that the update leaves out as ``dropped``.

    Fewer than ``count`` groups can remain. If all returns are equal in every group, the groups of
    the first draw remain.

    Args:
        groups: all groups played for the step, in the order of the draws.
        count: number of groups of an update.
        max_draws: maximum number of draws; 1 means no dynamic sampling.
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
    """Keep the groups with the greatest standard deviation of returns; drop the others.

    This is the filter of StarPO-S (RAGEN, arXiv:2504.20073, section 4.2), which keeps a quarter of
    the groups. Roles are compared apart, and the widest one counts: in a zero-sum game the sum over
    roles is 0 in every episode.

    Args:
        groups: groups of a step; groups that are already dropped do not count.
        share: share of groups to keep, rounded up.
    """
    left = [group for group in groups if not group.dropped]
    spreads = [max(map(pstdev, group.returns_by_role), default=0.0) for group in left]
    widest = sorted(range(len(left)), key=lambda i: -spreads[i])
    for place in widest[math.ceil(share * len(left)) :]:
        left[place].dropped = True
