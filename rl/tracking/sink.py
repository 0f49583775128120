"""The protocol of a metric sink: a place that a run's numbers go to."""

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
"""``log=none``: no sink beside metrics.jsonl and the screen."""
SINKS = Registry("sink", "turnwise.sinks")


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of every sink, given as ``log.KEY``."""

    project: str = "turnwise"
    """The project in W&B and trackio, the experiment in MLflow."""
    name: str = ""
    """The run's name in the tracker; empty: the name of the run's folder."""
    timeout_s: float = 30.0
    """Seconds that a sink may take to start, and all of them to finish; the run goes on without a
    slower one."""

    def __post_init__(self) -> None:
        at_least(0.1, self, "timeout_s")


@dataclass(frozen=True)
class RunInfo:
    """The run, as sinks and callbacks see it."""

    command: str
    """Which command runs: train, sft, dpo, reward_model or eval."""
    folder: Path
    config: Mapping[str, Any]
    """The resolved configuration, under the command line's keys (``algo.kl.coef``)."""
    step: int = 0
    """The last step of the run that is resumed; 0 in a new run."""


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: Literal["finished", "interrupted", "failed"]
    result: Mapping[str, Any] = field(default_factory=dict)
    """What result.json holds; empty where the run failed."""
    images: Mapping[str, Path] = field(default_factory=dict)
    """Pictures by name (``curve``, ``ledger``)."""


class Sink(ABC):
    """A place that a run's numbers go to.

    A thread of its own calls each sink, one method at a time, so a slow sink delays no other. An
    exception of :meth:`log` is reported once, and the same record is tried again later.

    Args:
        options: an object of the class's own ``Options``.
    """

    Options: ClassVar[type[SinkOptions]] = SinkOptions
    """A frozen dataclass derived from :class:`SinkOptions`; its fields are ``log.KEY``."""
    package: ClassVar[str] = ""
    """The module that the sink needs; "": none beside turnwise's own."""
    extra: ClassVar[str] = ""
    """What to give pip for it: ``turnwise[wandb]``."""
    rewinds: ClassVar[bool] = False
    """Whether :meth:`open` drops the steps after ``run.step``. A resumed run repeats these steps.
    A sink that cannot drop them does not get them a second time."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @abstractmethod
    def open(self, run: RunInfo, id: str) -> str:
        """Start the run in the tracker, or continue it.

        Args:
            run: the run and its configuration.
            id: what this method returned when the run was started; "" in a new run.

        Returns:
            The run's id in the tracker; it is kept in the run's folder.
        """

    @property
    def place(self) -> str:
        """Where a user finds the numbers: a URL or a path; the screen shows it once."""
        return ""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the numbers of a step. Several calls may name one step, with other metrics."""

    def finish(self, ending: Ending) -> None:  # noqa: B027 - many sinks have nothing to do
        """Record the result and end the run in the tracker."""


def register_sink(name: str, target: Any) -> None:
    """Give a sink's class, or ``"module:Class"``, a name for ``log=NAME`` in this process.

    Raises:
        ValueError: the name is taken.
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
        PluginImportError: the plug-in that owns the name fails to import.
        ValueError: the name belongs to something else than a sink.
    """
    found = SINKS.get(name)
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise ValueError(f"sink {name!r} is {found!r}: expected a class derived from Sink")
    return found


def make_sinks(names: Sequence[str], options: SinkOptions) -> dict[str, Sink]:
    """The sinks of ``log=NAMES``, not yet open.

    Raises:
        UsageError: the package of one is not installed.
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
