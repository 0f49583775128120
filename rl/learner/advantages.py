"""The advantages of an update, back in the trajectories that it learned from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl.rollout.trajectory import TrajectoryGroup


def note_advantages(
    groups: Sequence[TrajectoryGroup], credit: tuple[Tensor, Tensor] | None
) -> None:
    """Write the advantage of each trained token into its trajectory.

    Args:
        groups: the groups of the update, dropped ones among them.
        credit: of each token its row and its advantage, as of :class:`rl.learner.learner.Learner`;
            None: the update trained nothing.
    """
    if credit is None:
        return
    finished = [t for group in groups if not group.dropped for t in group.finished]
    # An episode has a row for each of its roles, and tokens are ordered by row.
    rows = sum(len(trajectory.roles) for trajectory in finished)
    ids, advantages = credit
    parts = iter(advantages.split(ids.bincount(minlength=rows).tolist()))
    for trajectory in finished:
        trajectory.advantages = [x for _ in trajectory.roles for x in next(parts).tolist()]
