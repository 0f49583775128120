"""The settings of ``rl.eval``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.run import RunConfig
from rl.settings.tracking import TrackingConfig


@from_python
@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TrackingConfig, RunConfig):
    """Measure how often a model succeeds in an environment."""

    split: Literal["test", "held-out", "validation", "train", "all"] = "test"
    """Which tasks to play. test: test tasks or, if rows name no split, all rows. held-out: if rows
    name no split, the rows that training leaves for its test. all: all rows."""
    tasks: int = 0
    """Number of tasks, starting with the first; 0 for all rows of a data set, or 512 generated
    tasks."""
    episodes: int = 1
    """Number of episodes per task."""
    json: bool = False
    """Print all numbers as a line of JSON instead of a table. "--json" does the same."""
    out: str = ""
    """A folder for the episodes and the result; empty to write nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "tasks")
        at_least(1, self, "episodes")
        if self.log.names and not self.out:
            raise ValueError(f"log ({self.log.name}) needs a folder: give out=FOLDER")
