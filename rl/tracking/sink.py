"""Metric sinks: the base class, their registration, and their options."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from rl.errors import UsageError
from rl.settings.groups import at_least
from tools.registry import Registry

NONE = "none"
"""Value of ``log`` that selects no tracker, only metrics.jsonl and the screen."""
SINKS = Registry("sink", "turnwise.sinks")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of every sink, given as ``log.KEY``."""

    project: str = "turnwise"
    """Name of the project in W&B and trackio, or of the experiment in MLflow."""
    name: str = ""
    """Name of the run in the tracker; empty for the name of the run's folder."""
    timeout_s: float = 30.0
    """Seconds that a sink may take to start, and that all sinks together may take to finish. The
    run continues without a slower sink."""
    episodes: int = 0
    """Number of training episodes of each step whose text the sinks get. 0 sends no text."""

    def __post_init__(self) -> None:
        at_least(0.1, self, "timeout_s")
        at_least(0, self, "episodes")


class EpisodeText(str):
    """The text of an episode, which a sink gets as a metric if ``log.episodes`` is above 0."""


@dataclass(frozen=True)
class RunInfo:
    """Description of a run for sinks and callbacks."""

    command: str
    """The command: train, sft, dpo, reward_model or eval."""
    folder: Path
    config: Mapping[str, Any]
    """The resolved configuration, by the command line's keys (``algo.kl.coef``)."""
    step: int = 0
    """The last step of a resumed run, or 0 in a new run."""


@dataclass(frozen=True)
class Ending:
    """The end of a run."""

    status: Literal["finished", "interrupted", "failed"]
    result: Mapping[str, Any] = field(default_factory=dict)
    """The content of result.json. Empty if the run failed."""
    images: Mapping[str, Path] = field(default_factory=dict)
    """Images by name (``curve``, ``ledger``)."""


class Sink(ABC):
    """Base class of a metric sink, which receives a run's metrics.

    Each sink has its own thread, which calls one method at a time, so a slow sink delays no other.
    An exception of :meth:`log` is reported once, and the same record is retried later.

    Args:
        options: an object of the class's own ``Options``.
    """

    Options: ClassVar[type[SinkOptions]] = SinkOptions
    """A frozen dataclass derived from :class:`SinkOptions`; its fields are ``log.KEY``."""
    package: ClassVar[str] = ""
    """Name of the module that the sink needs, or "" if it needs none."""
    extra: ClassVar[str] = ""
    """Argument of ``pip install`` for that module, such as ``turnwise[wandb]``."""
    rewinds: ClassVar[bool] = False
    """Whether :meth:`open` drops the steps after ``run.step``, which a resumed run repeats. A sink
    that cannot drop steps does not receive them again."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @abstractmethod
    def open(self, run: RunInfo, id: str) -> str:
        """Start the run in the tracker, or continue it.

        Args:
            run: the run and its configuration.
            id: the id that this method returned when the run started, or "" in a new run.

        Returns:
            The run's id in the tracker, which is stored in the run's folder.
        """

    @property
    def place(self) -> str:
        """URL, path or command that shows the metrics. The screen shows it once."""
        return ""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of a step. Several calls can have the same step and other metrics.

        With ``log.episodes`` above 0, ``metrics`` also has values of :class:`EpisodeText`, in a
        call of their own.
        """

    def finish(self, ending: Ending) -> None:  # noqa: B027 - many sinks have nothing to do
        """Record the result and end the run in the tracker."""


def register_sink(name: str, target: Any) -> None:
    """Register a sink's class, or ``"module:Class"``, as ``log=NAME`` in this process.

    Raises:
        ValueError: the name is already registered.
    """
    SINKS.register(name, target)


for _name, _class in (
    ("mlflow", "MLflow"),
    ("tensorboard", "TensorBoard"),
    ("trackio", "Trackio"),
    ("wandb", "WandB"),
):
    register_sink(_name, f"rl.tracking.{_name}:{_class}")


def sink_type(name: str) -> type[Sink]:
    """The class of a sink.

    Raises:
        UnknownNameError: no sink has the name.
        PluginImportError: the plug-in that registers the name fails to import.
        ValueError: the registered object is no sink.
    """
    found = SINKS.get(name)
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise ValueError(f"sink {name!r} is {found!r}: expected a class derived from Sink")
    return found


def make_sinks(names: Sequence[str], options: SinkOptions) -> dict[str, Sink]:
    """Make the sinks that ``log=NAMES`` selects. They are not open yet.

    Raises:
        UsageError: the package of a sink is not installed.
    """
    made = {}
    for name in names:
        kind = sink_type(name)
        if kind.package and importlib.util.find_spec(kind.package) is None:
            raise UsageError(
                f"log={name} needs the package {kind.package!r}: "
                f"pip install '{kind.extra or kind.package}'"
            )
        made[name] = kind(options)
    return made
