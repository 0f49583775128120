"""The comparison of an evaluation with another model on the same tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rl.errors import UsageError
from rl.evaluation.measures import Sample, measures, token_measures
from rl.evaluation.paired import (
    PairedTest,
    paired_pass_test,
    paired_test,
    signed_rank_test,
    t_test,
)
from rl.evaluation.power import possible, power_of
from rl.evaluation.store import EPISODES, RECORD, RESULT, identity, settings_in
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.rollout.trajectory_files import read_trajectories
from rl.run.metrics.intervals import pass_rate_of_tasks
from rl.settings.evaluate import EvaluateConfig

Scorer = Callable[[Sample], Sequence[Sequence[float]]]
SAME = ("env", "split", "score")
"""Keys of ``result.json`` that both evaluations must share."""
_OF_MODEL = ("model", "model files", "files")
_POLICY = ("policy", "tiny.")
"""Settings of the model, and how the settings begin that only say how it is served or made."""


@dataclass(frozen=True)
class Evaluated:
    """A model's evaluation: its result and its episodes."""

    result: Mapping[str, Any]
    groups: Sequence[TrajectoryGroup]
    settings: str = ""
    """Settings that differ from those of the compared evaluation; empty if there are none."""


def is_evaluation(folder: str) -> bool:
    """Whether a folder holds the result of an earlier evaluation with its episodes."""
    path = Path(folder).expanduser()
    return (path / RESULT).is_file() and (path / EPISODES).is_file()


def read_evaluation(folder: str, config: EvaluateConfig) -> Evaluated:
    """Read the folder of an earlier evaluation.

    Args:
        folder: the folder.
        config: the settings of the evaluation that is compared with it.

    Raises:
        UsageError: a file cannot be read, or the environment had other settings.
    """
    settings = _differing_settings(folder, config)
    path = Path(folder).expanduser()
    try:
        result = json.loads((path / RESULT).read_text(encoding="utf-8"))
        result["env"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"compare ({folder}): {path / RESULT} cannot be read ({error})") from error
    groups: list[TrajectoryGroup] = []
    for episode in read_trajectories(path / EPISODES):
        if episode.member == 0 or not groups:
            groups.append(TrajectoryGroup([]))
        groups[-1].trajectories.append(episode)
    return Evaluated(result, groups, settings)


def _differing_settings(folder: str, config: EvaluateConfig) -> str:
    """The settings that differ from those of an earlier evaluation, in words.

    The environment's settings must be the same, because they change the tasks or their rules.

    Raises:
        UsageError: the environment had other settings.
    """
    record = Path(folder).expanduser() / RECORD
    if not record.is_file():
        return f"unknown, because {record} is missing"
    there, here = settings_in(record), identity(config)
    differing = [
        f"{key} is {there[key]} there and {here[key]} here"
        for key in sorted(there.keys() & here.keys())
        if there[key] != here[key] and key not in _OF_MODEL and not key.startswith(_POLICY)
    ]
    if wrong := [text for text in differing if text.startswith(("env ", "env."))]:
        raise UsageError(
            f"compare ({folder}): {'; '.join(wrong)}; a paired test needs the same tasks: give the "
            "same settings, or evaluate that model again"
        )
    return "; ".join(differing)


def compare(
    this: Evaluated,
    other: Evaluated,
    best: float,
    ks: tuple[int, ...],
    score_episodes: Scorer | None = None,
) -> dict[str, Any]:
    """The other model's numbers and the paired comparison, under keys that start with ``compare/``.

    Budgets of tokens that only one of both evaluations has are added to the other one.

    Args:
        this: the evaluation; differences are its success minus the other's.
        other: the evaluation of the other model.
        best: the success of a right episode.
        ks: values of k for pass@k; empty for powers of two.
        score_episodes: returns a reward model's score of each episode, or None without a reward
            model.

    Raises:
        UsageError: the evaluations did not play the same tasks.
    """
    for key in SAME:
        if this.result[key] != other.result.get(key):
            raise UsageError(
                f"compare: {key} is {other.result.get(key)!r} there and {this.result[key]!r} here; "
                "a paired test needs the same tasks"
            )
    pairs = [
        (a, b) for a, b in zip(this.groups, other.groups, strict=False) if a.finished and b.finished
    ]
    for place, (a, b) in enumerate(pairs):
        _check_task(place, a.finished[0], b.finished[0])
    if len(pairs) < 2:
        raise UsageError(f"compare: {len(pairs)} tasks were played by both models; it needs 2")
    score = str(this.result["score"]).replace("return", "")
    ours = Sample([a for a, _ in pairs], score, best, ks)
    theirs = Sample([b for _, b in pairs], score, best, ks)
    test = paired_test(ours.successes, theirs.successes)
    rate = pass_rate_of_tasks(theirs.successes)
    rewards = score_episodes(theirs) if score_episodes else None
    numbers: dict[str, Any] = {
        **_token_curves(Sample(this.groups, score, best, ks), theirs),
        **{f"compare/{key}": value for key, value in measures(theirs, rewards).items()},
        "compare/model": other.result["model"],
        "compare/tasks": len(pairs),
        **({"compare/settings": other.settings} if other.settings else {}),
        "compare/success": rate.rate,
        "compare/success_low": rate.low,
        "compare/success_high": rate.high,
        **_of_test(test),
        **_as_published(ours, theirs),
    }
    return numbers | _pass_differences(ours, theirs)


def _token_curves(ours: Sample, theirs: Sample) -> dict[str, Any]:
    """Both models' success within the budgets of tokens of either."""
    budgets = sorted({*ours.budgets, *theirs.budgets})
    other = token_measures(theirs, budgets)
    return token_measures(ours, budgets) | {f"compare/{k}": value for k, value in other.items()}


def _pass_differences(ours: Sample, theirs: Sample) -> dict[str, Any]:
    """The paired difference of pass@k for each k that both models have enough episodes for."""
    numbers: dict[str, Any] = {}
    for k in sorted({*ours.reported_ks} & {*theirs.reported_ks}):
        test = paired_pass_test(ours.counts, theirs.counts, k)
        name = f"compare/difference/pass@{k}"
        numbers |= {name: test.difference, f"{name}/low": test.low, f"{name}/high": test.high}
        numbers[f"{name}/p_value"] = test.p_value
    return numbers


def _check_task(place: int, ours: Trajectory, theirs: Trajectory) -> None:
    same = (ours.part, ours.task, ours.observation) == (
        theirs.part,
        theirs.task,
        theirs.observation,
    )
    if not same:
        raise UsageError(
            f"compare: task {place} differs between the evaluations: give the same env.KEY "
            "settings, tasks and seed"
        )


def _of_test(test: PairedTest) -> dict[str, Any]:
    return {
        "compare/difference": test.difference,
        "compare/difference_low": test.low,
        "compare/difference_high": test.high,
        "compare/p_value": test.p_value,
        "compare/p_value_by": test.method,
        "compare/differing_tasks": test.differing,
        "compare/detectable_difference": possible(test.detectable),
        "compare/power_for_5_points": power_of(0.05, test.deviation, test.tasks),
        "compare/within_noise": test.is_noise,
    }


def _as_published(ours: Sample, theirs: Sample) -> dict[str, Any]:
    """The one-sided tests that *A Sober Look* reports, for the greater of the two models."""
    differences = [
        fmean(a) - fmean(b) for a, b in zip(ours.successes, theirs.successes, strict=True)
    ]
    if max(differences) - min(differences) < 1e-12:
        return {}
    sign = 1.0 if sum(differences) >= 0 else -1.0
    towards = [sign * d for d in differences]
    return {
        "compare/p_value_t_one_sided": t_test(towards)[1],
        "compare/p_value_wilcoxon_one_sided": signed_rank_test(towards)[1],
    }


def warning(result: Mapping[str, Any]) -> str:
    """A sentence about a difference that is within noise, or "" if there is none."""
    if not result.get("compare/within_noise"):
        return ""
    detectable = result["compare/detectable_difference"]
    shown = (
        "are too few to show any difference with 80% power: give more tasks"
        if detectable == math.inf
        else f"show a difference of {detectable:.3f} or more with 80% power"
    )
    return (
        f"the difference of {result['compare/difference']:+.3f} is within noise "
        f"(p = {result['compare/p_value']:.2g}): these {result['compare/tasks']} tasks {shown}"
    )
