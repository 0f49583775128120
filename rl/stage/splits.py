"""Which splits a command plays, asked of the environment before anything is loaded."""

from __future__ import annotations

import dataclasses

import envs
from rl.config import RunConfig, SFTConfig, TrainConfig
from rl.errors import UsageError


def check_splits(config: RunConfig) -> None:
    """Refuse a command that would need tasks of a split that has none.

    Raises:
        UsageError: names the split, and the key that does without it.
    """
    if isinstance(config, TrainConfig):
        check_split(config, "train")
        if config.eval.tasks:
            check_split(config, "validation", "; eval.tasks=0 does without")
        if config.eval.test_tasks:
            check_split(config, "test", "; eval.test_tasks=0 does without")
    elif isinstance(config, SFTConfig) and config.test_tasks:
        check_split(config, "test", "; test_tasks=0 does without")


def check_split(config: RunConfig, split: str, remedy: str = "") -> None:
    """Refuse a split without tasks.

    Raises:
        UsageError: the split has none; ends in ``remedy``.
    """
    options = dataclasses.replace(config.env.options, split=split)
    try:
        envs.make_from(config.env.env_id, options).close()
    except ValueError as error:
        raise UsageError(f"{error}{remedy}") from error
