"""The setting ``env``: an environment and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import envs
from envs.datasets import name_of
from envs.datasets.options import GENERATED, RowOptions
from envs.env import EnvOptions
from rl.settings.parsing.choice import Build, Choice

NO_ENV = ""
"""The id of no environment, for commands that learn from a file and play no episode."""


@dataclass(frozen=True)
class EnvChoice:
    """A chosen environment: its full id, and its options."""

    env_id: str
    options: EnvOptions


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name == NO_ENV:
        return EnvOptions, {}, lambda values: EnvChoice(NO_ENV, EnvOptions(**values))
    env_id = envs.resolve(name)
    options = envs.env_type(env_id).Options
    return options, {}, lambda values: EnvChoice(env_id, _with_absolute_path(options(**values)))


def _with_absolute_path(options: EnvOptions) -> EnvOptions:
    """The options, with the path of task rows made absolute: a run resumes from any folder."""
    if not isinstance(options, RowOptions) or name_of(options.tasks) != options.tasks:
        return options
    path = Path(options.tasks).expanduser()
    if options.tasks in ("", GENERATED) or not path.exists():
        return options
    return replace(options, tasks=str(path.absolute()))


def _names() -> list[str]:
    """Names without versions. A family (``family/NAME``) counts as one name."""
    names = {re.sub(r"(/.*)?-v\d+$", r"\1", env_id) for env_id in envs.ids()}
    return sorted({f"{n.partition('/')[0]}/NAME" if "/" in n else n for n in names})


# Registered by name, so that the module is imported only when the environment is made.
envs.register("agent-v0", "rl.external.env:AgentEnv")
ENV = Choice(_resolve, default="code-sandbox", names=_names, hidden=("split",))
