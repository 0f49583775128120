"""Suites: a TOML file of data sets, which are evaluated one after the other.

A file has a table for each data set, and settings for all of them::

    [settings]
    episodes = 4

    [[set]]
    name = "arithmetic"
    env = "math"
    tasks = 100

A suite fixes how models are measured: a setting that the file has may not have another value on
the command line or from Python. The command line names the model and the folder ``out``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from rl.settings.parsing.files import as_values, as_word, flatten, read_toml, table_words
from rl.settings.parsing.plain import to_plain

Play = Callable[[EvaluateConfig], Awaitable[tuple[dict[str, object], list[TrajectoryGroup]]]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NOT_IN_FILE = ("suite", "out", "json", "dry_run", "compare", "config", "preset")
"""Settings that concern all data sets together, and belong on the command line."""


@dataclass(frozen=True)
class SuiteSet:
    """A data set of a suite, with its complete settings."""

    name: str
    config: EvaluateConfig


def check_words(config: EvaluateConfig, words: Sequence[str]) -> None:
    """Reject words of the command line that name an environment, or contradict the suite's file.

    Raises:
        UsageError: a word sets ``env`` or ``env.KEY``, or has another value than the file.
    """
    tables = _tables(config.suite)
    for word in words:
        key, _, value = word.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        _check_value(config.suite, tables, key, value)
        if key == "env" or key.startswith("env."):
            raise UsageError(
                f"{word} must be left out with suite={config.suite}: each [[set]] of the file "
                f"names its environment; set {key} there"
            )


def _check_value(path: str, tables: Mapping[str, Mapping[str, str]], key: str, value: str) -> None:
    """Reject a value of a setting that a table of the file has with another value.

    Raises:
        UsageError: a table has another value.
    """
    for name, table in tables.items():
        if key in table and table[key].lower() != value.lower() and key not in ("env", "name"):
            raise UsageError(
                f"{key}={value} must be left out with suite={path}, whose {name} has "
                f"{key}={table[key]}: leave it out, or change the file"
            )


def _tables(path: str) -> dict[str, dict[str, str]]:
    """The settings of each table of the file, as words by their keys.

    The first table is ``[settings]``.

    Raises:
        UsageError: the file is wrong.
    """
    tables = read_toml(path, "suite")
    given = tables.get("set", [])
    if set(tables) - {"settings", "set"} or not isinstance(given, list) or not given:
        raise UsageError(f"suite ({path}) must hold [[set]] tables and at most one [settings]")
    found = {"[settings]": table_words(tables.get("settings", {}))}
    for number, table in enumerate(given, start=1):
        found[f"set {number}"] = {key: as_word(value) for key, value in flatten(table).items()}
    for name, words in found.items():
        for key in words:
            if key in _NOT_IN_FILE:
                raise UsageError(f"suite ({path}): {name} has {key}: give it on the command line")
    return found


def _given(config: EvaluateConfig) -> Iterator[tuple[str, str]]:
    """Keys and values of the settings that differ from their defaults."""
    defaults = as_values(to_plain(EvaluateConfig()))
    choices: dict[str, Any] = {
        "policy": config.policy,
        "log": config.log,
        "cluster": config.cluster,
    }
    for prefix, choice in choices.items():
        if dataclasses.is_dataclass(choice.settings):
            options = dataclasses.fields(choice.settings)
            defaults |= {f"{prefix}.{option.name}": option.default for option in options}
    for key, value in as_values(to_plain(config)).items():
        if key not in defaults or defaults[key] != value:
            yield key, as_word(value)


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
    tables = _tables(path)
    for key, value in _given(config):
        _check_value(path, tables, key, value)
    shared = {
        key: as_word(value)
        for key, value in as_values(to_plain(config)).items()
        if key not in (*_NOT_IN_FILE, "env") and not key.startswith("env.")
    }
    shared |= tables.pop("[settings]")
    sets = [_set(config, name, table, shared) for name, table in tables.items()]
    names = [one.name for one in sets]
    if len(set(names)) < len(names):
        raise UsageError(f"suite ({path}): two sets have the same name ({', '.join(names)})")
    return sets


def _set(
    config: EvaluateConfig, place: str, table: Mapping[str, str], shared: Mapping[str, str]
) -> SuiteSet:
    name = table.get("name", "")
    own = table_words({key: value for key, value in table.items() if key != "name"})
    if not _NAME.fullmatch(name) or "env" not in own:
        raise UsageError(f"suite ({config.suite}): {place} needs a name and an env")
    words = {**shared, **own}
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
