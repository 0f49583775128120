"""The numbers of an evaluation, from its episodes to the keys of ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from rl.evaluation.answers import answer_entropy, cluster_sizes, final_answer, majority_at_k
from rl.evaluation.passk import (
    MOST,
    Estimate,
    best_of_n,
    estimate,
    pass_curve,
    powers_of_two,
    spread_over_passes,
    within_tokens,
)
from rl.evaluation.power import detectable_difference, possible, unpaired_deviation
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.run.metrics.episodes import success_of
from rl.run.metrics.intervals import ROUNDING

WITHIN = "success_within_tokens/"
"""Start of the keys of the success within a budget of sampled tokens."""


@dataclass(frozen=True)
class Sample:
    """The finished episodes of an evaluation, one list for each task.

    Args:
        groups: the episodes. Tasks without a finished episode do not count.
        score: name of the environment's success score, or "" for the return.
        best: the success of a right episode.
        ks: values of k to report. If empty, these are 1, 2, 4, ... up to 256.
    """

    groups: Sequence[TrajectoryGroup]
    score: str
    best: float
    ks: tuple[int, ...] = ()

    @cached_property
    def tasks(self) -> list[list[Trajectory]]:
        """The finished episodes of each task."""
        return [group.finished for group in self.groups if group.finished]

    @cached_property
    def successes(self) -> list[list[float]]:
        """The success of each episode."""
        return [[success_of(t, self.score) for t in task] for task in self.tasks]

    @cached_property
    def least(self) -> int:
        """The smallest number of finished episodes of a task."""
        return min(map(len, self.tasks), default=0)

    @cached_property
    def reported_ks(self) -> list[int]:
        """The values of k that every task has enough finished episodes for."""
        if self.least < 2 and not self.ks:
            return []
        return [k for k in self.ks or powers_of_two(min(self.least, MOST)) if k <= self.least]

    @cached_property
    def counts(self) -> list[tuple[int, int]]:
        """For each task the number of episodes, and how many of them are right."""
        right = self.best - ROUNDING
        return [(len(values), sum(s >= right for s in values)) for values in self.successes]

    @cached_property
    def passes(self) -> dict[int, Estimate]:
        """pass@k for each k."""
        return pass_curve(self.counts, self.reported_ks)

    @cached_property
    def answers(self) -> list[list[str | None]]:
        """The final answer of each episode."""
        return [
            [final_answer(t.turns[-1].action) if t.turns else None for t in task]
            for task in self.tasks
        ]

    @cached_property
    def tokens(self) -> list[list[int]]:
        """The number of sampled tokens of each episode."""
        return [[t.num_sampled for t in task] for task in self.tasks]

    @cached_property
    def budgets(self) -> list[int]:
        """Powers of two around the episodes' numbers of sampled tokens."""
        flat = [used for task in self.tokens for used in task]
        if max(flat, default=0) < 1:
            return []
        exponents = range(max(1, min(flat)).bit_length() - 1, (max(flat) - 1).bit_length() + 1)
        return [2**i for i in exponents]

    @cached_property
    def is_share(self) -> bool:
        """Whether all successes are from 0 to 1. Returns of other environments may not be."""
        return all(0 <= s <= 1 for values in self.successes for s in values)


def measures(sample: Sample, rewards: Sequence[Sequence[float]] | None = None) -> dict[str, object]:
    """The numbers of a sample, under the keys of ``result.json``.

    Args:
        sample: the finished episodes.
        rewards: a reward model's score of each episode, or None without a reward model.
    """
    if not sample.tasks:
        return {}
    numbers: dict[str, object] = {f"pass@{k}": e.value for k, e in sample.passes.items()}
    for k, found in sample.passes.items():
        numbers |= _interval(f"pass@{k}", found)
    if sample.reported_ks:
        numbers |= _majority(sample)
    if rewards is not None:
        numbers |= _best(sample, rewards)
    numbers |= token_measures(sample, sample.budgets)
    if (spread := spread_over_passes(sample.successes)) is not None:
        numbers |= {"passes": spread.passes, "passes/std": spread.std}
        numbers |= {"passes/low": spread.low, "passes/high": spread.high}
    if sample.is_share:
        deviation = unpaired_deviation(sample.successes)
        detectable = detectable_difference(deviation, len(sample.tasks))
        numbers["detectable_difference"] = possible(detectable)
    return numbers


def _interval(name: str, found: Estimate) -> dict[str, object]:
    return {f"{name}/low": found.low, f"{name}/high": found.high}


def _majority(sample: Sample) -> dict[str, object]:
    """maj@k, and the clusters of equal answers."""
    pairs = list(zip(sample.answers, sample.successes, strict=True))
    numbers: dict[str, object] = {}
    if sample.is_share:
        for k in sample.reported_ks:
            found = estimate([majority_at_k(answers, rights, k) for answers, rights in pairs])
            numbers |= {f"maj@{k}": found.value, **_interval(f"maj@{k}", found)}
    clusters = [cluster_sizes(answers) for answers in sample.answers]
    return numbers | {
        "answers/distinct": fmean(map(len, clusters)),
        "answers/entropy": fmean(map(answer_entropy, sample.answers)),
        "answers/missing": fmean(a is None for answers in sample.answers for a in answers),
    }


def _best(sample: Sample, rewards: Sequence[Sequence[float]]) -> dict[str, object]:
    """best@n by a reward model for each n."""
    numbers: dict[str, object] = {}
    for n in sample.reported_ks:
        pairs = zip(rewards, sample.successes, strict=True)
        values = [best_of_n(scores, rights, n) for scores, rights in pairs]
        found = estimate(values) if sample.is_share else None
        numbers[f"best@{n}"] = fmean(values)
        if found is not None:
            numbers |= _interval(f"best@{n}", found)
    return numbers


def token_measures(sample: Sample, budgets: Sequence[int]) -> dict[str, object]:
    """The sampled tokens in all and per episode, and the success within budgets of tokens."""
    total = sum(map(sum, sample.tokens))
    if total < 1:
        return {}
    count = sum(map(len, sample.tokens))
    numbers: dict[str, object] = {"tokens/total": total, "tokens/per_episode": total / count}
    for budget, found in within_tokens(sample.tokens, sample.successes, budgets).items():
        name = f"{WITHIN}{budget}"
        numbers |= {name: found.rate, f"{name}/low": found.low, f"{name}/high": found.high}
    return numbers


def points_of(result: Mapping[str, object], prefix: str) -> list[tuple[int, float]]:
    """Points (k, value) of the keys ``PREFIXk`` of a result, by increasing k."""
    points = []
    for key, value in result.items():
        number = key.removeprefix(prefix)
        if number != key and number.isdigit() and isinstance(value, int | float):
            points.append((int(number), float(value)))
    return sorted(points)
