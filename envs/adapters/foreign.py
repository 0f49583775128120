"""Shared code of the adapters: options of foreign environments, seeds as tasks, and prompts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
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


def read_messages(messages: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The system message and the first observation that stand for a prompt of several messages.

    The first messages of the system are the system message. One message of the user is its text;
    several messages are shown with their roles.

    Args:
        messages: pairs of a role and a text.
    """
    start = 0
    while start < len(messages) and messages[start][0] == "system":
        start += 1
    system, rest = "\n\n".join(text for _, text in messages[:start]), messages[start:]
    if [role for role, _ in rest] == ["user"]:
        return system, rest[0][1]
    return system, "\n\n".join(f"[{role}]\n{text}" for role, text in rest)


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
