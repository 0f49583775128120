"""What adapters share: options of a foreign environment, and tasks that are seeds."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from envs.datasets import SPLITS
from envs.env import EnvOptions
from envs.logic.tasks import NUM_TASKS
from tools.registry import PluginImportError


@dataclass(frozen=True, kw_only=True)
class ForeignOptions(EnvOptions):
    """Options of an environment that has a turn limit of its own."""

    max_turns: int = 100
    """Actions per episode, if the environment itself does not end it before."""


def seeds(options: EnvOptions) -> range:
    """The tasks of a split: seeds below ``2**32``, none of which another split has."""
    first = 3 * (options.seed * 1_000_000 % 10**9) + SPLITS.index(options.split)
    return range(first, first + 3 * NUM_TASKS[options.split], 3)


def library(module: str, extra: str) -> ModuleType:
    """A module of another library, imported now.

    Raises:
        PluginImportError: it is not installed, or fails to import; says which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginImportError(
            f"this environment needs {module} ({error}): pip install 'turnwise[{extra}]'"
        ) from error
