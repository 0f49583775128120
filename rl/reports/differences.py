"""Which settings of a run differ from the defaults, and the command line that repeats the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import DPOConfig, RewardModelConfig, SFTConfig
from rl.settings.parsing.command_line import resolve
from rl.settings.parsing.files import RECORD, as_values, as_word, read_run
from rl.settings.parsing.plain import to_plain, without_secrets
from rl.settings.train import TrainConfig

COMMANDS: dict[str, type[Any]] = {
    "rl.train": TrainConfig,
    "rl.sft": SFTConfig,
    "rl.dpo": DPOConfig,
    "rl.reward_model": RewardModelConfig,
    "rl.eval": EvaluateConfig,
}
_CHOICES = ("env", "model", "algo", "algo.advantage", "algo.surrogate", "policy", "log")
"""Settings on which the defaults of other settings depend."""
_ALWAYS = ("env", "model", "algo")
_OF_THE_MACHINE = ("resume", "dry_run", "out", "backup")


@dataclass(frozen=True)
class RecordedRun:
    """The settings that a command recorded in its folder."""

    command: str
    """The command, for example "rl.train"."""
    settings: Mapping[str, str]
    """All settings, as words of the command line by key. Keys that look secret are hidden."""
    changed: Mapping[str, str]
    """Environment, model and algorithm, and every other setting that is not the default."""

    @property
    def command_line(self) -> str:
        """A command line that repeats the run in another folder."""
        words = [f"{k}={v}" for k, v in self.changed.items() if k not in _OF_THE_MACHINE]
        return shlex.join(["python", "-m", self.command, *words])


def read_recorded(folder: Path) -> RecordedRun:
    """The settings in the config.json of a command's folder.

    Raises:
        UsageError: the folder has no such file, or the file is damaged.
    """
    settings = read_run(str(folder), "run")
    plain = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    command = min(COMMANDS, key=lambda name: len(_names(COMMANDS[name]) ^ plain.keys()))
    shown = without_secrets(settings)
    differs = _differing(COMMANDS[command], settings)
    return RecordedRun(command, shown, {key: shown[key] for key in settings if key in differs})


def _names(config_type: type[Any]) -> set[str]:
    return {field.name for field in fields(config_type)}


def _differing(config_type: type[Any], settings: Mapping[str, str]) -> set[str]:
    """The keys whose value is not the default.

    If the defaults are unknown, because an environment or algorithm is not installed here, all keys
    count.
    """
    required = {
        field.name
        for field in fields(config_type)
        if field.default is MISSING and field.default_factory is MISSING
    }
    chosen = {key: settings[key] for key in (*_CHOICES, *sorted(required)) if key in settings}
    try:
        defaults = as_values(to_plain(resolve(config_type, {"the run": chosen})))
    except UsageError:
        return set(settings)
    return {
        key
        for key, value in settings.items()
        if key in (*_ALWAYS, *required) or key not in defaults or as_word(defaults[key]) != value
    }
