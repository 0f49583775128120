"""Which tasks a command plays, asked of the environment before torch is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import envs
from envs.mixture.parts import MixOptions
from envs.options import EnvOptions
from envs.rows import dataset_of
from envs.splits import ALL, EmptySplit
from rl.config import EvaluateConfig, RunConfig, SFTConfig, TrainConfig
from rl.errors import UsageError
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
    try:
        data = dataset_of(envs.env_type(config.env.env_id), options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    split: str = "test" if chosen == "held-out" else chosen
    if data is None:
        of = check_split(config, split)
        tasks = min(config.tasks or GENERATED_TASKS, of)
        return Played(split, tasks, of, f"{split} tasks{_hashed_parts(options)}")
    if split == ALL:
        what = "rows"
    elif data.named:
        what = f"{split} rows"
    elif chosen == "test":
        split, what = ALL, "rows (no row names a split, so every row counts as test)"
    else:
        what = f"rows (no row names a split: these are for {split} by a hash)"
    there = check_split(config, split, "; split=all plays every row")
    of = there if data.named and split != ALL else data.num_rows
    if split == ALL and there < of:
        what += f"; {of - there} cannot be tasks"
    return Played(split, min(config.tasks or there, there), of, what)


def _hashed_parts(options: EnvOptions) -> str:
    """What to know of a mixture's parts whose rows name no split: a hash chose some of them."""
    if not isinstance(options, MixOptions):
        return ""
    found = [
        (part.name, dataset_of(envs.env_type(part.env_id), part.options))
        for part in options.parts()
    ]
    names = [name for name, data in found if data is not None and not data.named]
    if not names:
        return ""
    return (
        f" (rows of {', '.join(names)} name no split: a hash chose; play them alone for all rows)"
    )


def check_split(config: RunConfig, split: str, remedy: str = "") -> int:
    """How many tasks a split has.

    Raises:
        UsageError: the environment cannot be made, or the split has no tasks, where the message
            ends in ``remedy``.
    """
    options = dataclasses.replace(config.env.options, split=split)
    try:
        env = envs.make_from(config.env.env_id, options)
    except EmptySplit as error:
        raise UsageError(f"{error}{remedy}") from error
    except (ValueError, UnknownNameError, PluginImportError) as error:
        raise UsageError(str(error)) from error
    env.close()
    return len(env.tasks)
