"""Numbers about a step's episodes, under TRL's names where TRL has one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from agents.completion import FinishReason
from rl.rollout.trajectory import EQUAL, Trajectory, TrajectoryGroup
from rl.run.reflection import reflects

ROUNDING = 1e-6
"""By which a success may be below that of a right episode."""
Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """A share of successes with its 95% interval."""

    rate: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}] of {self.count}"


def pass_rate(successes: Sequence[float]) -> PassRate:
    """The mean of successes with Wilson's score interval (Wilson 1927, JASA 22, p. 209).

    Returns outside [0, 1], of an environment that names no success score, are no successes: their
    mean has the normal interval, from the standard error.

    Raises:
        ValueError: there is none.
    """
    n = len(successes)
    if n == 0:
        raise ValueError("a pass rate needs at least one episode")
    p = fmean(successes)
    if min(successes) < 0 or max(successes) > 1:
        half = Z_95 * stdev(successes) / math.sqrt(n) if n > 1 else math.inf
        return PassRate(p, p - half, p + half, n)
    return PassRate(p, *_wilson(p, n), n)


def pass_rate_of_tasks(by_task: Sequence[Sequence[float]]) -> PassRate:
    """The mean of successes over tasks, with its 95% interval for tasks like these.

    Episodes of one task are alike, so tasks are what is independent. The interval is Wilson's at
    the effective number of episodes: as many independent ones as would have the variance that the
    tasks' means show (the design effect of Kish 1965, in Wilson's interval as in Korn and Graubard
    1998, Survey Methodology 24, p. 193). With an episode per task it is :func:`pass_rate`'s.

    Args:
        by_task: of each task its episodes' successes; tasks without any do not count.

    Raises:
        ValueError: there is no episode.
    """
    tasks = [values for values in by_task if values]
    flat = [value for values in tasks for value in values]
    if len(flat) == len(tasks):
        return pass_rate(flat)
    means = [fmean(values) for values in tasks]
    p, n = fmean(means), len(tasks)
    variance = stdev(means) ** 2 / n if n > 1 else math.inf
    if min(flat) < 0 or max(flat) > 1:
        half = _t_95(n - 1) * math.sqrt(variance) if n > 1 else math.inf
        return PassRate(p, p - half, p + half, len(flat))
    # Means that are all equal say nothing of the variance: each task then counts once.
    effective = p * (1 - p) / variance if 0 < variance < math.inf else n
    return PassRate(p, *_wilson(p, min(max(effective, 1.0), len(flat))), len(flat))


def _wilson(p: float, n: float) -> tuple[float, float]:
    """The ends of Wilson's 95% interval of a share p among n."""
    centre = (p + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(p * (1 - p) / n + Z_95**2 / (4 * n * n))
    # At 0 and at 1 the interval ends at p itself, which rounding would miss by a hair.
    return min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half))


def mean_interval(by_task: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95% interval of the mean over all episodes, for tasks like these.

    Episodes of one task are alike, so tasks are what is independent: the standard error is
    clustered by task, and the quantile is Student's t with (tasks - 1) degrees of freedom.

    Args:
        by_task: of each task its episodes' values.

    Returns:
        The ends; infinite where there are fewer than two tasks.
    """
    tasks = [values for values in by_task if values]
    count = sum(map(len, tasks))
    if len(tasks) < 2:
        return -math.inf, math.inf
    mean = sum(map(sum, tasks)) / count
    squares = sum(sum(value - mean for value in values) ** 2 for values in tasks)
    error = math.sqrt(squares * len(tasks) / (len(tasks) - 1)) / count
    half = _t_95(len(tasks) - 1) * error
    return mean - half, mean + half


def _t_95(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t (Abramowitz and Stegun 1964, 26.7.5)."""
    if degrees < 3:
        # The expansion is for large degrees; these two are in closed form.
        return (12.706204736, 4.302652730)[degrees - 1]
    z, n = Z_95, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def pass_at_k(episodes: int, right: int, k: int) -> float:
    """The chance that one of k episodes is right, where ``right`` of ``episodes`` were.

    ``1 - C(n - c, k) / C(n, k)``, unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Raises:
        ValueError: k is not from 1 to ``episodes``.
    """
    if not 1 <= k <= episodes:
        raise ValueError(f"k ({k}) must be from 1 to the number of episodes ({episodes})")
    return 1 - math.comb(episodes - right, k) / math.comb(episodes, k)


def success_of(trajectory: Trajectory, score: str) -> float:
    """The last turn's ``score``; an episode that ended before it got one did not succeed.

    An environment without a success score (an empty name) is judged by its return.
    """
    if not score:
        return trajectory.reward
    return trajectory.turns[-1].scores.get(score, 0.0) if trajectory.turns else 0.0


def share_of_success(
    trajectory: Trajectory, score: str, reward_range: tuple[float, float]
) -> float:
    """How far an episode succeeded, from 0 to 1.

    Where no score says it, it is the return's place in its range.
    """
    low, high = (0.0, 1.0) if score else reward_range
    if not high > low:
        return 0.0
    return min(1.0, max(0.0, (success_of(trajectory, score) - low) / (high - low)))


def staleness_metrics(episodes: Sequence[Trajectory], version: int) -> dict[str, float]:
    """How old the sampled tokens are that an update learned from, in versions of the weights.

    Args:
        episodes: of the update.
        version: of the weights that it began with.
    """
    ages = [
        version - sampled
        for episode in episodes
        for segment in episode.segments
        for sampled, mask in zip(segment.versions, segment.loss_mask, strict=True)
        if mask
    ]
    if not ages:
        return {}
    return {"staleness/oldest": float(max(ages)), "staleness/mean": sum(ages) / len(ages)}


def part_metrics(
    groups: Sequence[TrajectoryGroup], prefix: str, names: Sequence[str]
) -> dict[str, float]:
    """Numbers of each part of a mixture of environments, under ``PREFIXparts/PART/...``.

    Args:
        groups: some episodes; where none is of a mixture, there are no metrics.
        prefix: of every name.
        names: which of "episodes", "failures", "reward" and "success".
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


def rollout_metrics(groups: Sequence[TrajectoryGroup], success_score: str = "") -> dict[str, float]:
    """Rewards, lengths, turns, endings and tools over a step's episodes.

    Failed episodes count in ``failures``, by kind in ``failures/KIND``, and in nothing else;
    attempts that failed and were made again in ``retries``. Groups that dynamic sampling left out
    count in everything: what is reported is how the policy fared, not how the chosen groups did.

    Args:
        groups: the step's.
        success_score: the environment's; with an empty one no episode is right or wrong.
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
    metrics |= _reward_metrics(groups, finished)
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
            any(reflects(turn.action) for turn in t.turns) for t in finished
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
    """Mean sampled tokens of the episodes that succeeded fully, and of the others."""
    lengths: dict[str, list[int]] = {"right": [], "wrong": []}
    for t in finished:
        lengths["right" if success_of(t, score) >= 1 else "wrong"].append(t.num_sampled)
    return {f"completions/{k}_mean_length": fmean(v) for k, v in lengths.items() if v}


def _vine_metrics(everyone: Sequence[Trajectory]) -> dict[str, float]:
    """What was played to value turns, where something was; it counts in nothing else."""
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
    groups: Sequence[TrajectoryGroup], finished: Sequence[Trajectory]
) -> dict[str, float]:
    spreads = [
        stdev(t.reward for t in group.finished) for group in groups if len(group.finished) > 1
    ]
    metrics = {"reward": fmean(t.reward for t in finished)}
    by_task: dict[tuple[str, int], list[float]] = defaultdict(list)
    for t in finished:
        by_task[t.part, t.task].append(t.reward)
    if len(by_task) > 1:
        metrics["reward_low"], metrics["reward_high"] = mean_interval(list(by_task.values()))
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
    """The mean of each named number over ``count`` episodes; an absent one counts as 0."""
    totals: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.items():
            totals[prefix + name] += value
    return {name: total / count for name, total in totals.items()}
