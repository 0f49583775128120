"""Settings of metric sinks and callbacks: ``log=wandb,tensorboard``, ``callbacks=NAME``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.left_out import left_out
from rl.tracking.callback import full_references, make_callbacks
from rl.tracking.sink import NONE, SINKS, SinkOptions, make_sinks, sink_type


@dataclass(frozen=True)
class LogChoice:
    """Chosen sinks: their names, and their options."""

    name: str
    """Names separated by commas, or "none"."""
    settings: SinkOptions

    @property
    def names(self) -> list[str]:
        """The names of the sinks."""
        return _names(self.name)


def _names(text: str) -> list[str]:
    """The names in ``log=TEXT``.

    Raises:
        ValueError: a name occurs twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", NONE)]
    if len(set(names)) < len(names):
        raise ValueError(f"log ({text}) names a sink twice")
    return names


def _resolve(text: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    names = _names(text)
    options = _options_of(*names)
    defaults = {f.name: f.default for f in fields(options)}

    def build(values: Mapping[str, Any]) -> LogChoice:
        set_ = [key for key, value in values.items() if value != defaults[key]]
        if set_ and not names:
            sinks = ", ".join(SINKS.names())
            raise ValueError(
                f"{set_[0]} ({values[set_[0]]}) needs a sink: give log=..., one of {sinks}"
            )
        return LogChoice(",".join(names) or NONE, options(**values))

    return options, defaults, build


@functools.cache
def _options_of(*names: str) -> type[SinkOptions]:
    """A dataclass with the options of several sinks. Repeated calls return the same class."""
    kinds = list(dict.fromkeys(sink_type(name).Options for name in names))
    own = [k for k in kinds if not any(o is not k and issubclass(o, k) for o in kinds)]
    if len(own) < 2:
        return own[0] if own else SinkOptions
    both = type("LogOptions", tuple(own), {"__doc__": "Options of several sinks."})
    return dataclass(frozen=True, kw_only=True)(both)


LOG = Choice(_resolve, default=NONE, names=lambda: [NONE, *SINKS.names()])


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Settings of a command's metric sinks and callbacks."""

    log: LogChoice = field(default_factory=left_out, metadata={"choice": LOG})
    """Trackers that receive the metrics in addition to metrics.jsonl, separated by commas, as in
    wandb,tensorboard. log.KEY sets their options."""
    callbacks: str = ""
    """Names of callbacks, or classes as FILE.py:CLASS or MODULE:CLASS, separated by commas. Options
    follow in parentheses: NAME(KEY=VALUE)."""

    def __post_init__(self) -> None:
        # The other base class of a command's settings.
        getattr(super(), "__post_init__", lambda: None)()
        object.__setattr__(self, "callbacks", full_references(self.callbacks))

    def check_tracking(self) -> None:
        """Check sinks and callbacks without opening them.

        Raises:
            UsageError: a package is not installed, or a callback's name or option is wrong.
        """
        make_sinks(self.log.names, self.log.settings)
        make_callbacks(self.callbacks)
