"""What an environment is made of: its tasks, and the plain values that define it."""

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
"""The name of an option's annotation -> what its value may be."""


class Tasks(Protocol[TaskT_co]):
    """A finite, indexable set of tasks: each a pure function of (split, index, seed)."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int, /) -> TaskT_co:
        """Task ``index``; the same object's worth of data every time."""
        ...


def _is_a(value: object, kind: str) -> bool:
    """Whether a value is of a type that is called so; of other types nothing is known."""
    if kind not in _PLAIN:
        return True
    return isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Plain values that define an environment; subclasses add theirs. The command line reads it."""

    composed: ClassVar[bool] = False
    """Whether the environment has parts, each of which says what split "all" means for it."""
    split: str = "train"
    """Which tasks: "train", "validation" (for choices during a run), "test" (for none), or "all":
    every row of a data set."""
    seed: int = 0
    """Seed of generated tasks and worlds."""
    max_turns: int = 1
    """Actions per episode; 1 makes the environment a contextual bandit."""
    step_timeout_s: float = 120.0
    """A step that waits longer than this fails (EnvFailure, retryable)."""
    token_budget: str = ""
    """"exact", "max" or "both": prompts end in a budget of tokens; its range is "max:100-4000"."""

    def __post_init__(self) -> None:
        for option in fields(self):
            # A string, or the class itself where annotations are not postponed.
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
    """What a list says beside what the class tells itself; "" is derived from it."""

    agent: str = ""
    """What the agent does ("finds a secret code"); "": the first line of the class's docstring."""
    turns: str = ""
    """How many there are; "": the default of ``max_turns``."""
    reward: str = ""
    """What is paid for what; "": the range of an episode's return."""
    needs: str = ""
    """What must be there beside turnwise; "": nothing."""
