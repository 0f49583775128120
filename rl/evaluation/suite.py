"""Suites: a TOML file of data sets, which are evaluated one after the other.

A file has a table for each data set, and settings for all of them::

    [settings]
    episodes = 4

    [[set]]
    name = "arithmetic"
    env = "math"
    tasks = 100

A suite fixes how models are measured, so its settings override the command line. The command line
names the model and the folder ``out``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.evaluation.measures import Sample
from rl.evaluation.store import RESULT
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.metrics.intervals import PassRate, pass_rate_of_tasks
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.command_line import parse
from rl.settings.parsing.files import as_values, as_word, read_toml, table_words
from rl.settings.parsing.plain import to_plain

Play = Callable[[EvaluateConfig], Awaitable[tuple[dict[str, object], list[TrajectoryGroup]]]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NOT_SHARED = ("suite", "out", "json", "dry_run", "compare", "env")


@dataclass(frozen=True)
class SuiteSet:
    """A data set of a suite, with its complete settings."""

    name: str
    config: EvaluateConfig


def check_words(config: EvaluateConfig, words: Sequence[str]) -> None:
    """Reject words of the command line that name an environment, because each set has its own.

    Raises:
        UsageError: a word sets ``env`` or ``env.KEY``.
    """
    for word in words:
        key = word.removeprefix("--").partition("=")[0]
        if key == "env" or key.startswith("env."):
            raise UsageError(
                f"{word} must be left out with suite={config.suite}: each [[set]] of the file "
                f"names its environment; set {key} there"
            )


def read_suite(config: EvaluateConfig) -> list[SuiteSet]:
    """The data sets of the file ``config.suite``.

    Raises:
        UsageError: the file, or a setting in it, is wrong.
    """
    path = config.suite
    if config.env != EvaluateConfig().env:
        raise UsageError(
            f"env ({config.env.env_id}) must be left out with suite={path}: each [[set]] of the "
            "file names its environment"
        )
    tables = read_toml(path, "suite")
    given = tables.get("set", [])
    if set(tables) - {"settings", "set"} or not isinstance(given, list) or not given:
        raise UsageError(f"suite ({path}) must hold [[set]] tables and at most one [settings]")
    shared = {
        key: as_word(value)
        for key, value in as_values(to_plain(config)).items()
        if key not in _NOT_SHARED and not key.startswith("env.")
    }
    shared |= table_words(tables.get("settings", {}))
    sets = [_set(config, number, table, shared) for number, table in enumerate(given, start=1)]
    names = [one.name for one in sets]
    if len(set(names)) < len(names):
        raise UsageError(f"suite ({path}): two sets have the same name ({', '.join(names)})")
    return sets


def _set(
    config: EvaluateConfig, number: int, table: Mapping[str, Any], shared: Mapping[str, str]
) -> SuiteSet:
    name = str(table.get("name", ""))
    if not _NAME.fullmatch(name) or "env" not in table:
        raise UsageError(f"suite ({config.suite}): set {number} needs a name and an env")
    words = {**shared, **table_words({k: v for k, v in table.items() if k != "name"})}
    if config.out:
        words["out"] = str(Path(config.out) / name)
    if config.compare:
        earlier = Path(config.compare).expanduser() / name
        words["compare"] = str(earlier) if (earlier / RESULT).is_file() else config.compare
    try:
        argv = [f"{key}={value}" for key, value in words.items()]
        return SuiteSet(name, parse(EvaluateConfig, argv, command="rl.eval", presets={}))
    except UsageError as error:
        raise UsageError(f"suite ({config.suite}), set {name}: {error}") from error


async def play_suite(
    config: EvaluateConfig, play: Play
) -> tuple[dict[str, object], list[TrajectoryGroup]]:
    """Evaluate the data sets of a suite.

    Args:
        config: the settings, with ``suite``.
        play: evaluates one data set, and writes its folder.

    Returns:
        The averages with their intervals and the result of each data set; and all episodes.

    Raises:
        UsageError: the file is wrong, or a data set cannot be played.
    """
    sets = read_suite(config)
    results: dict[str, dict[str, object]] = {}
    groups: list[TrajectoryGroup] = []
    rates: list[PassRate] = []
    counts: list[int] = []
    for one in sets:
        results[one.name], played = await play(one.config)
        score = str(results[one.name]["score"]).replace("return", "")
        successes = Sample(played, score, 1.0).successes
        rates.append(pass_rate_of_tasks(successes))
        counts.append(len(successes))
        groups += played
    by_task = stratified_mean(rates, counts)
    by_set = stratified_mean(rates, [1.0] * len(rates))
    return {
        "suite": config.suite,
        "model": config.model_name,
        "tasks": sum(counts),
        "episodes": by_task.count,
        "success": by_task.rate,
        "success_low": by_task.low,
        "success_high": by_task.high,
        "average_over_sets": by_set.rate,
        "average_over_sets_low": by_set.low,
        "average_over_sets_high": by_set.high,
        "sets": results,
    }, groups


def stratified_mean(rates: Sequence[PassRate], weights: Sequence[float]) -> PassRate:
    """A weighted mean of data sets' means, with its 95% interval.

    The data sets are independent, so the squared distances of their bounds from their means add up
    (Zou and Donner 2008, Statistics in Medicine 27, p. 1693). Unlike a sum of variances, this does
    not call a suite certain whose data sets are all right or all wrong. A single data set keeps its
    interval.

    Args:
        rates: the mean success of each data set, with its interval.
        weights: the weight of each data set.

    Example:
        >>> from rl.run.metrics.intervals import pass_rate
        >>> str(stratified_mean([pass_rate([0, 1]), pass_rate([1, 1])], [1, 1]))
        '0.750 [0.364, 0.953] of 4'
    """
    shares = [weight / sum(weights) for weight in weights]
    pairs = list(zip(shares, rates, strict=True))
    mean = sum(share * rate.rate for share, rate in pairs)
    below = math.hypot(*(share * (rate.rate - rate.low) for share, rate in pairs))
    above = math.hypot(*(share * (rate.high - rate.rate) for share, rate in pairs))
    return PassRate(mean, mean - below, mean + above, sum(rate.count for rate in rates))
