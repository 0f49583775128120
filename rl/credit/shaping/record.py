"""Applies shapings to the trajectories of a step."""

from __future__ import annotations

from collections.abc import Sequence

from envs.token_budget import budget_of
from rl.credit.shaping.shaping import Member, Weighted
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.run.metrics.episodes import success_of
from rl.run.metrics.intervals import ROUNDING


def shape(
    shapings: Sequence[Weighted],
    groups: Sequence[TrajectoryGroup],
    success_score: str,
    best_return: float,
    limit: int = 0,
    reward_weight: float = 1.0,
    context_length: int = 0,
    offload: bool = False,
) -> None:
    """Record each shaping's contribution in each finished episode.

    Args:
        shapings: the shapings, with weights.
        groups: a step's episodes. Siblings are compared within their group.
        success_score: name of the score that is 1 if an episode is right. If empty, the return
            decides.
        best_return: the return of a right episode, for an empty ``success_score``.
        limit: maximum number of tokens that all turns of an episode can sample, or 0 if unknown.
        reward_weight: weight of the episodes' own returns.
        context_length: the model's context window, or 0 if unknown.
        offload: whether a shaping's model moves to the host's memory when it has scored.

    Raises:
        ValueError: a shaping does not return one finite number for each episode.
    """
    played = [group.finished for group in groups if group.finished]
    least = (1.0 if success_score else best_return) - ROUNDING

    def member(t: Trajectory) -> Member:
        scores = t.turns[-1].scores if t.turns else {}
        right = success_of(t, success_score) >= least
        longest = _longest(t, limit, context_length)
        return Member(t.num_sampled, right, t.reward, budget_of(scores), longest, t)

    for weighted in shapings:
        parts = played if weighted.shaping.by_group else [[t for group in played for t in group]]
        for part in parts:
            given = weighted.contributions([member(t) for t in part])
            for trajectory, contribution in zip(part, given, strict=True):
                trajectory.shaping[weighted.shaping.name] = contribution
        if offload and weighted.shaping.model is not None:
            weighted.shaping.model.offload()
    for trajectory in (t for group in played for t in group):
        trajectory.reward_weight = reward_weight


def _longest(trajectory: Trajectory, limit: int, context_length: int) -> int:
    """Maximum number of tokens that the episode could sample, or 0 if unknown."""
    if not context_length:
        return limit
    room = sum(context_length - segment.loss_mask.count(0) for segment in trajectory.segments)
    return min(limit, room) if limit else room
