"""Files of commands that train on texts: settings, losses and their curve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rl.files import replace_text
from rl.reports.card import write_card
from rl.run.curve import draw_losses
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain
from rl.settings.tracking import TrackingConfig
from rl.tracking.callback import Callback
from rl.tracking.json_lines import JsonLines
from rl.tracking.sink import RunInfo
from rl.tracking.tracker import Tracker

CURVE = "curve.png"


class TrainingLog(Tracker):
    """A tracker that writes ``config.json``, ``metrics.jsonl`` and ``curve.png`` of one folder.

    Args:
        command: the command's name.
        folder: an existing folder. :meth:`open` replaces the files of an earlier attempt.
        config: the command's settings.
        report: called with a line for the user.
        callbacks: additional callbacks, from Python.

    Raises:
        RunFailure: a file cannot be written.
        UsageError: a sink's package is not installed, or a callback's name or option is wrong.
    """

    def __init__(
        self,
        command: str,
        folder: Path,
        config: TrackingConfig,
        report: Callable[[str], None],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._plain = to_plain(config)
        self._folder, self._metrics = folder, folder / "metrics.jsonl"
        self._records: list[Mapping[str, Any]] = []
        run = RunInfo(command, folder, as_values(self._plain))
        super().__init__(run, config, [JsonLines(self._metrics)], report, callbacks)

    def open(self, step: int = 0) -> None:
        """Replace the files of an earlier attempt, and open the tracker."""
        text = json.dumps(self._plain, indent=2, sort_keys=True, default=str)
        replace_text(self._folder / "config.json", text + "\n")
        replace_text(self._metrics, "")
        super().open(step)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.open)
        return self

    def log(self, record: Mapping[str, Any]) -> None:
        """Log a record, and keep it for the curve; see :meth:`Tracker.log`."""
        self._records.append(record)
        super().log(record)

    def step(self, record: Mapping[str, Any]) -> None:
        """Log a step of learning, and call the callbacks.

        Raises:
            RunFailure: metrics.jsonl cannot be written, or a callback raised.
        """
        self.log(record)
        self.call(record, groups=())

    def tested(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation and call the callbacks. Raises the errors of :meth:`step`."""
        self.log(record)
        self.call(record)

    def draw(self, title: str) -> None:
        """Draw the curve of the losses so far."""
        draw_losses([r for r in self._records if "loss" in r], self._folder / CURVE, title)

    def finish(self, result: Mapping[str, Any], images: Mapping[str, Path] | None = None) -> None:
        """Finish the tracker, and write the model's card; see :meth:`Tracker.finish`.

        The tracker gets the curve as an image.
        """
        if "model" in result:
            write_card(Path(str(result["model"])), self._folder, result)
        super().finish(result, {"curve": self._folder / CURVE, **(images or {})})
