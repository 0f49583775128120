"""Metrics of a step's episodes, under TRL's names if TRL has one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

import numpy as np

from agents.completion import FinishReason
from rl.rollout.trajectory import EQUAL, Trajectory, TrajectoryGroup
from rl.run.metrics.intervals import mean_interval
from rl.run.metrics.reflection import reflects


def success_of(trajectory: Trajectory, score: str) -> float:
    """The success of an episode: ``score`` at its last turn, or 0 if it ended without one.

    If ``score`` is empty, the environment has no success score, and the result is the return.
    """
    if not score:
        return trajectory.reward
    return trajectory.turns[-1].scores.get(score, 0.0) if trajectory.turns else 0.0


def share_of_success(
    trajectory: Trajectory, score: str, reward_range: tuple[float, float]
) -> float:
    """The success of an episode, from 0 to 1.

    If ``score`` is empty, the result is the return, scaled from ``reward_range`` to [0, 1].
    """
    low, high = (0.0, 1.0) if score else reward_range
    if not high > low:
        return 0.0
    return min(1.0, max(0.0, (success_of(trajectory, score) - low) / (high - low)))


def staleness_metrics(episodes: Sequence[Trajectory], version: int) -> dict[str, float]:
    """The largest and the mean age of an update's sampled tokens, in updates of the weights.

    Args:
        episodes: the episodes of the update.
        version: the version of the weights before the update.
    """
    sampled = [
        np.asarray(segment.versions)[np.asarray(segment.loss_mask, dtype=np.bool_)]
        for episode in episodes
        for segment in episode.segments
    ]
    ages = version - np.concatenate(sampled) if sampled else np.empty(0)
    if not len(ages):
        return {}
    return {"staleness/oldest": float(ages.max()), "staleness/mean": float(ages.mean())}


def part_metrics(
    groups: Sequence[TrajectoryGroup], prefix: str, names: Sequence[str]
) -> dict[str, float]:
    """Metrics of each environment in a mixture, under ``PREFIXparts/PART/...``.

    Args:
        groups: the episodes. If they are not of a mixture, there are no metrics.
        prefix: prefix of every name.
        names: names of metrics, among "episodes", "failures", "reward" and "success".
    """
    everyone = [t for group in groups for t in group.trajectories]
    metrics: dict[str, float] = {}
    for part in sorted({t.part for t in everyone if t.part}):
        own = [t for t in everyone if t.part == part]
        finished = [t for t in own if t.failure is None]
        numbers = {"episodes": float(len(finished)), "failures": float(len(own) - len(finished))}
        if finished:
            numbers["reward"] = fmean(t.reward for t in finished)
            numbers["success"] = fmean(success_of(t, "success") for t in finished)
        metrics |= {f"{prefix}parts/{part}/{n}": numbers[n] for n in names if n in numbers}
    return metrics


def rollout_metrics(
    groups: Sequence[TrajectoryGroup],
    success_score: str = "",
    reward_range: tuple[float, float] = (-math.inf, math.inf),
) -> dict[str, float]:
    """Rewards, lengths, turns, endings and tools over a step's episodes.

    Failed episodes count only in ``failures`` and, by kind, in ``failures/KIND``. Repeated attempts
    count in ``retries``. Groups that dynamic sampling dropped count in all metrics, so that these
    describe the policy and not the selected groups.

    Args:
        groups: the step's episodes.
        success_score: name of the environment's success score. If empty, there are no metrics of
            right and wrong episodes.
        reward_range: the environment's; the interval of the reward ends at it.
    """
    finished = [t for group in groups for t in group.finished]
    everyone = [t for group in groups for t in group.trajectories]
    metrics = {
        "failures": float(len(everyone) - len(finished)),
        "retries": float(sum(t.attempts - 1 for t in everyone)),
        "num_groups": float(len(groups)),
        "num_groups_dropped": float(sum(group.dropped for group in groups)),
    }
    kinds = Counter(t.failure.split(":")[0] for t in everyone if t.failure is not None)
    metrics |= {f"failures/{kind}": float(count) for kind, count in kinds.items()}
    metrics |= part_metrics(groups, "", ("episodes", "failures", "reward", "success"))
    metrics |= _vine_metrics(everyone)
    if not finished:
        return metrics
    metrics |= _reward_metrics(groups, finished, reward_range)
    lengths = [t.num_sampled for t in finished]
    turns = [turn for t in finished for turn in t.turns]
    calls = [call for turn in turns for call in turn.tool_calls]
    clipped = [
        t
        for t in finished
        if t.turns and t.turns[-1].finish_reason in (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
    ]
    metrics |= {
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": len(clipped) / len(finished),
        "num_turns": fmean(len(t.turns) for t in finished),
        "num_sampled_tokens": float(sum(lengths)),
        "tools/call_frequency": len(calls) / len(finished),
        "completions/reflection_rate": fmean(
            any(reflects(turn.action) for turn in t.turns if not turn.by_partner) for t in finished
        ),
    }
    if success_score:
        metrics |= _lengths_by_success(finished, success_score)
    if calls:
        metrics["tools/failure_frequency"] = fmean(call.error is not None for call in calls)
    for reason, count in Counter(t.stop_reason for t in finished if t.stop_reason).items():
        metrics[f"stop_reason/{reason}"] = count / len(finished)
    return metrics


def _lengths_by_success(finished: Sequence[Trajectory], score: str) -> dict[str, float]:
    """Mean numbers of sampled tokens of fully successful episodes, and of all other episodes."""
    lengths: dict[str, list[int]] = {"right": [], "wrong": []}
    for t in finished:
        lengths["right" if success_of(t, score) >= 1 else "wrong"].append(t.num_sampled)
    return {f"completions/{k}_mean_length": fmean(v) for k, v in lengths.items() if v}


def _vine_metrics(everyone: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of the continuations that value turns. Continuations count in no other metric."""
    played = [t.continuations for t in everyone if t.continuations.count]
    if not played:
        return {}
    count = sum(c.count for c in played)
    return {
        "vine/rollouts": float(count),
        "vine/tokens": float(sum(c.num_sampled for c in played)),
        "vine/failed": sum(c.failed for c in played) / count,
    }


def _reward_metrics(
    groups: Sequence[TrajectoryGroup],
    finished: Sequence[Trajectory],
    reward_range: tuple[float, float],
) -> dict[str, float]:
    spreads = [
        stdev(t.reward for t in group.finished) for group in groups if len(group.finished) > 1
    ]
    metrics = {"reward": fmean(t.reward for t in finished)}
    by_task: dict[tuple[str, int], list[float]] = defaultdict(list)
    for t in finished:
        by_task[t.part, t.task].append(t.reward)
    if len(by_task) > 1:
        interval = mean_interval(list(by_task.values()), reward_range)
        metrics["reward_low"], metrics["reward_high"] = interval
    if spreads:
        metrics["reward_std"] = fmean(spreads)
        equal = EQUAL * max(abs(t.reward) for t in finished)
        metrics["frac_reward_zero_std"] = fmean(spread <= equal for spread in spreads)
    for role in sorted({role for t in finished for role in t.named_roles}):
        played = [t for t in finished if role in t.named_roles]
        metrics[f"roles/{role}/reward"] = fmean(sum(t.rewards_of(role)) for t in played)
    metrics |= _means("rewards/", (t.rewards for t in finished), len(finished))
    if any(t.shaping for t in finished):
        metrics["reward_shaped"] = fmean(t.shaped_reward for t in finished)
        metrics |= _means("shaping/", (t.shaping for t in finished), len(finished))
    last = (t.turns[-1].scores for t in finished if t.turns)
    metrics |= _means("scores/", last, len(finished))
    return metrics


def _means(prefix: str, records: Iterable[dict[str, float]], count: int) -> dict[str, float]:
    """The mean of each named number over ``count`` episodes. An absent number counts as 0."""
    totals: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.items():
            totals[prefix + name] += value
    return {name: total / count for name, total in totals.items()}
