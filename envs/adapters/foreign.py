"""Shared code of the adapters: options of foreign environments, and tasks that are seeds."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from envs.datasets import SPLITS
from envs.datasets.generated import NUM_TASKS
from envs.env import EnvOptions
from tools.registry import PluginImportError


@dataclass(frozen=True, kw_only=True)
class ForeignOptions(EnvOptions):
    """Options of an environment with a turn limit of its own."""

    max_turns: int = 100
    """Maximum number of actions per episode; the foreign environment may end it earlier."""


def seeds(options: EnvOptions) -> range:
    """The tasks of a split, which are seeds below ``2**32``. No two splits share a seed."""
    first = 3 * (options.seed * 1_000_000 % 10**9) + SPLITS.index(options.split)
    return range(first, first + 3 * NUM_TASKS[options.split], 3)


def library(module: str, extra: str) -> ModuleType:
    """Import a module of an optional library, such as ``gem``.

    Raises:
        PluginImportError: the library is not installed, or fails to import. The message names the
            extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginImportError(
            f"this environment needs {module} ({error}): pip install 'turnwise[{extra}]'"
        ) from error
