"""Which tasks a command plays, asked of the environment before torch is loaded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import envs
from envs.datasets.options import RowOptions, dataset_of
from envs.datasets.splits import ALL, EmptySplit
from envs.mixture.parts import MixOptions, Part
from rl.config import EvaluateConfig, RunConfig, SFTConfig, TrainConfig
from rl.errors import UsageError
from rl.settings.files import read_run
from tools.registry import PluginImportError, UnknownNameError

GENERATED_TASKS = 512
"""How many generated tasks an evaluation plays by default."""


@dataclass(frozen=True, slots=True)
class Played:
    """Which tasks an evaluation plays, and of how many."""

    split: str
    """The environment's split."""
    tasks: int
    of: int
    what: str
    """What ``tasks`` and ``of`` count, and how the rows were chosen."""

    def __str__(self) -> str:
        return f"{self.tasks} of {self.of} {self.what}"


def check_splits(config: RunConfig) -> None:
    """Refuse a command whose environment cannot be made, or that needs tasks of an empty split.

    Evaluations ask :func:`tasks_to_play` instead.

    Raises:
        UsageError: names the option or the split, and the key that does without it.
    """
    if isinstance(config, TrainConfig):
        check_split(config, "train")
        if config.eval.tasks:
            check_split(config, "validation", "; eval.tasks=0 does without")
        if config.eval.test_tasks:
            check_split(config, "test", "; eval.test_tasks=0 does without")
    elif isinstance(config, SFTConfig):
        if config.data == "demonstrations":
            check_split(config, "train", "; data=FILE does without")
        if config.test_tasks:
            check_split(config, "test", "; test_tasks=0 does without")
    else:
        check_split(config, "train")


def tasks_to_play(config: EvaluateConfig) -> Played:
    """Which tasks an evaluation plays.

    Raises:
        UsageError: the split has none, or a row of the data set cannot be a task.
    """
    options, chosen = config.env.options, str(config.split)
    if isinstance(options, MixOptions):
        return _mixture_to_play(config, options)
    try:
        data = dataset_of(envs.env_type(config.env.env_id), options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    split: str = "test" if chosen == "held-out" else chosen
    if data is None:
        of = check_split(config, split)
        tasks = min(config.tasks or GENERATED_TASKS, of)
        return Played(split, tasks, of, f"{split} tasks")
    if split == ALL:
        what = "rows"
    elif data.named:
        what = f"{split} rows"
    elif chosen == "test":
        seen = _trained_on_them(config)
        split, what = ALL, f"rows (no row names a split, so every row counts as test{seen})"
    else:
        what = f"rows (no row names a split: these are for {split} by a hash)"
    there = check_split(config, split, "; split=all plays every row")
    of = there if data.named and split != ALL else data.num_rows
    if split == ALL and there < of:
        what += f"; {of - there} cannot be tasks"
    return Played(split, min(config.tasks or there, there), of, what)


def _trained_on_them(config: EvaluateConfig) -> str:
    """What to know of a model whose own run trained on tasks of the same source."""
    options, checkpoints = config.env.options, Path(config.model).expanduser().parent
    if not isinstance(options, RowOptions) or checkpoints.name != "checkpoints":
        return ""
    try:
        run = read_run(str(checkpoints.parent), "model")
    except UsageError:
        return ""  # No run made the model: its training rows are unknown.
    trained = run.get("env.tasks", "")
    same = trained == options.tasks or Path(trained).absolute() == Path(options.tasks).absolute()
    if not same or run.get("env") != config.env.env_id:
        return ""
    return ", also those that this model was trained on: split=held-out leaves them out"


def _hashed_parts(names: Sequence[str]) -> str:
    """What to know of the parts of a mixture whose rows name no split: a hash chose some rows."""
    if not names:
        return ""
    return f" (rows of {', '.join(names)} name no split: a hash chose; split=test plays all rows)"


def _mixture_to_play(config: EvaluateConfig, options: MixOptions) -> Played:
    """As :func:`tasks_to_play`; each part's rows are chosen as if it were played alone."""
    split: str = "test" if config.split == "held-out" else config.split
    try:
        unsplit = options.parts_without_split()
    except ValueError as error:
        raise UsageError(f"env.of: {error}") from error
    if config.split == "test" and unsplit:
        split = ALL
    of = check_split(config, split)
    if split != ALL:
        what = f"{split} tasks{_hashed_parts(unsplit)}"
        return Played(split, min(config.tasks or GENERATED_TASKS, of), of, what)
    options = dataclasses.replace(options, split=split)
    env = envs.make_from(config.env.env_id, options)
    count = min(config.tasks or of, of)
    played = Counter(env.tasks[index].part for index in range(count))
    env.close()
    words = [
        f"{played[place]} {_counted(part)} of {part.name}"
        for place, part in enumerate(options.parts())
    ]
    return Played(split, count, of, f"tasks: {', '.join(words)}")


def _counted(part: Part) -> str:
    return "rows (none names a split)" if part.options.split == ALL else "test tasks"


def check_split(config: RunConfig, split: str, remedy: str = "") -> int:
    """How many tasks a split has.

    Raises:
        UsageError: the environment cannot be made, or the split has no tasks, where the message
            ends in ``remedy``.
    """
    try:
        options = dataclasses.replace(config.env.options, split=split)
        env = envs.make_from(config.env.env_id, options)
    except EmptySplit as error:
        raise UsageError(f"{error}{remedy}") from error
    except (ValueError, UnknownNameError, PluginImportError) as error:
        raise UsageError(str(error)) from error
    env.close()
    return len(env.tasks)
