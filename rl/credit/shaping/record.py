"""From the trajectories of a step to what a shaping sees of them, and back into their records."""

from __future__ import annotations

from collections.abc import Sequence

from envs.budget import budget_of
from rl.credit.shaping.shaping import Member, Weighted
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.run.metrics import success_of

_ROUNDING = 1e-6


def shape(
    shapings: Sequence[Weighted],
    groups: Sequence[TrajectoryGroup],
    success_score: str,
    best_return: float,
    limit: int = 0,
) -> None:
    """Record each shaping's contribution with each finished episode; the others get none.

    Args:
        shapings: what to add, by weight.
        groups: a step's episodes; siblings are compared within their group.
        success_score: the score that is 1 where an episode is right; "": its return decides.
        best_return: the return of a right episode, where no score says it.
        limit: the most tokens that an episode could have sampled; 0: nobody says.

    Raises:
        ValueError: a shaping gives anything but one finite number for each episode.
    """
    for group in groups:
        finished = group.finished
        if not finished:
            continue
        least = (1.0 if success_score else best_return) - _ROUNDING
        members = [_member(t, success_of(t, success_score) >= least, limit) for t in finished]
        for weighted in shapings:
            given = weighted.contributions(members)
            for trajectory, contribution in zip(finished, given, strict=True):
                trajectory.shaping[weighted.shaping.name] = contribution


def _member(trajectory: Trajectory, right: bool, limit: int) -> Member:
    scores = trajectory.turns[-1].scores if trajectory.turns else {}
    return Member(trajectory.num_sampled, right, trajectory.reward, budget_of(scores), limit)
