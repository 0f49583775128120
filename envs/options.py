"""An environment's tasks, its options, and its row in the list of environments."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, TypeVar

from envs.datasets.splits import ALL, SPLITS
from envs.token_budget import budget_kinds

TaskT_co = TypeVar("TaskT_co", covariant=True)

_PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (float, int),
}
"""Types that an option's value can have, by the name of the annotation."""


class Tasks(Protocol[TaskT_co]):
    """An indexable, finite set of tasks. (split, index, seed) determines each task."""

    def __len__(self) -> int:
        """Number of tasks."""
        ...

    def __getitem__(self, index: int, /) -> TaskT_co:
        """Task ``index``. Every call returns equal data."""
        ...


def _is_a(value: object, kind: str) -> bool:
    """Whether a value has the type named ``kind``. Always True for types that are not plain."""
    if kind not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Options of an environment, as plain values. Subclasses add fields."""

    composed: ClassVar[bool] = False
    """Whether the environment consists of parts, each of which interprets split "all" by itself."""
    split: str = "train"
    """Tasks to play: "train", "validation" (for choices during a run), "test" (for the final
    figure), or "all" for every row of a data set."""
    seed: int = 0
    """Seed of generated tasks and worlds."""
    max_turns: int = 1
    """Maximum number of actions per episode; 1 makes the environment a contextual bandit."""
    step_timeout_s: float = 120.0
    """Seconds that a step may wait before it fails (EnvFailure, retryable)."""
    token_budget: str = ""
    """Adds a token budget to prompts: "exact", "max" or "both". A range may follow:
    "max:100-4000"."""

    def __post_init__(self) -> None:
        for option in fields(self):
            # A string, or the class itself if the module does not postpone annotations.
            kind = option.type.__name__ if isinstance(option.type, type) else str(option.type)
            if not _is_a(value := getattr(self, option.name), kind):
                raise ValueError(f"{option.name} ({value!r}) must be of type {kind}")
        if self.split not in (*SPLITS, ALL):
            known = ", ".join((*SPLITS, ALL))
            raise ValueError(f"split ({self.split!r}) must be one of {known}")
        if self.max_turns < 1:
            raise ValueError(f"max_turns ({self.max_turns}) must be >= 1")
        if self.step_timeout_s <= 0:
            raise ValueError(f"step_timeout_s ({self.step_timeout_s}) must be > 0")
        budget_kinds(self.token_budget)
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{option.name} ({value}) must be finite")


@dataclass(frozen=True, kw_only=True)
class Card:
    """An environment's row in the list of environments.

    Empty fields have defaults from the class.
    """

    agent: str = ""
    """What the agent does ("finds a secret code"). By default, the first line of the class's
    docstring."""
    turns: str = ""
    """Number of turns. By default, the default of ``max_turns``."""
    reward: str = ""
    """Description of the reward. By default, the range of an episode's return."""
    needs: str = ""
    """Requirements besides turnwise; empty if there are none."""
