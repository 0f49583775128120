"""The settings of ``rl.eval``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.policies.openai import OpenAIEndpoint
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
    """A folder for the episodes, the result and a picture; empty to write nothing. If the folder
    has episodes of the same evaluation, these are not played again."""
    k: tuple[int, ...] = ()
    """Values of k for pass@k, maj@k and best@k, each at most the number of episodes, as in 1,8,64.
    If empty: 1, 2, 4, ... up to 256."""
    compare: str = ""
    """Another model, or the folder of its earlier evaluation. A paired test on the same tasks
    compares both models. With policy=openai only the folder."""
    reward_model: str = ""
    """A folder that rl.reward_model saved. The model chooses one of k episodes for best@k."""

    suite: str = ""
    """A TOML file of data sets, which are evaluated one after the other. The command line may not
    contradict its settings."""

    @property
    def loads_model(self) -> bool:
        """Whether this process loads ``model``. False if an endpoint serves the model."""
        return self.policy.settings.samples_tokens

    @property
    def model_name(self) -> str:
        """The model's folder or id, or its name on the endpoint."""
        settings = self.policy.settings
        return settings.model if isinstance(settings, OpenAIEndpoint) else self.model

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "tasks")
        at_least(1, self, "episodes")
        for k in self.k:
            if not 1 <= k <= self.episodes:
                raise ValueError(f"k ({k}) must be from 1 to episodes ({self.episodes})")
        if self.reward_model and self.episodes < 2:
            raise ValueError(
                f"reward_model ({self.reward_model}) chooses among the episodes of a task: give "
                "episodes=2 or more"
            )
        if not self.loads_model:
            self._check_endpoint()
        if self.log.names and not self.out:
            raise ValueError(f"log ({self.log.name}) needs a folder: give out=FOLDER")

    def _check_endpoint(self) -> None:
        """Reject settings that need a model in this process."""
        name = self.policy.name
        if self.model != "tiny":
            raise ValueError(
                f"model ({self.model}) must be left out with policy={name}: give policy.model=NAME"
            )
        if self.reward_model:
            raise ValueError(
                f"reward_model ({self.reward_model}) reads token ids, and policy={name} has none"
            )
        if not self.model_name:
            raise ValueError(f"policy.model ('') must name the model of policy={name}")
