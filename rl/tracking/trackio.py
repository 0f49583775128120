"""trackio: a tracker like W&B, with a database on this machine or in a Hugging Face Space."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rl.tracking.sink import Ending, RunInfo, Sink, SinkOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrackioOptions(SinkOptions):
    """The options of ``log=trackio``."""

    space: str = ""
    """trackio: the Hugging Face Space (user/name) that shows the run. If empty, only this machine
    does."""


class Trackio(Sink):
    """Logs to trackio. ``trackio show`` opens the page."""

    Options = TrackioOptions
    package = "trackio"
    extra = "turnwise[trackio]"

    def open(self, run: RunInfo, id: str) -> str:
        """Start a run, or continue the run with this name."""
        import trackio

        options = cast(TrackioOptions, self.options)
        _mute(trackio, trackio.run, trackio.utils)
        self._run = trackio.init(
            project=options.project,
            name=id or options.name or run.folder.name,
            config=dict(run.config),
            resume="allow" if id else "never",
            space_id=options.space or None,
            embed=False,
        )
        return str(self._run.name)

    @property
    def place(self) -> str:
        """The command that shows the run."""
        options = cast(TrackioOptions, self.options)
        return options.space or f"trackio show --project {options.project} (run {self._run.name})"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a row to the run's history."""
        self._run.log(dict(metrics), step=step)

    def finish(self, ending: Ending) -> None:
        """End the run, with the result and images in a last row."""
        import trackio

        last = {f"result/{k}": v for k, v in ending.result.items() if isinstance(v, (int, float))}
        images = {name: trackio.Image(str(path)) for name, path in ending.images.items()}
        if last or images:
            self._run.log({**last, **images})
        self._run.finish()


def _mute(*modules: Any) -> None:
    """Keep modules from printing to standard output, which the command needs for its result."""
    for module in modules:
        module.print = _log


def _log(*words: object) -> None:
    logger.info(" ".join(map(str, words)))
