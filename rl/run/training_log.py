"""What training on a file of texts leaves beside the model: settings, losses and their curve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rl.run.curve import draw_losses
from rl.run.files import replace_text, writing
from rl.run.plain import to_plain


class TrainingLog:
    """``config.json``, ``metrics.jsonl`` and ``curve.png`` of one folder.

    Args:
        folder: exists already; files of an earlier attempt are replaced.
        config: of the command.

    Raises:
        RunFailure: a file cannot be written.
    """

    def __init__(self, folder: Path, config: object) -> None:
        self._folder = folder
        self._metrics = folder / "metrics.jsonl"
        self._records: list[Mapping[str, float]] = []
        text = json.dumps(to_plain(config), indent=2, sort_keys=True, default=str)
        replace_text(folder / "config.json", text + "\n")
        replace_text(self._metrics, "")

    def log(self, record: Mapping[str, float]) -> None:
        """Append a step's line to metrics.jsonl."""
        self._records.append(record)
        with writing(self._metrics), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def draw(self, title: str) -> None:
        """Draw the losses so far."""
        draw_losses(self._records, self._folder / "curve.png", title)
