"""metrics.jsonl, a sink that every run has: a line of JSON for each record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.files import writing
from rl.tracking.sink import RunInfo, Sink, SinkOptions


class JsonLines(Sink):
    """Appends each record to a file. The run calls it directly, so a full disk ends the run.

    Args:
        path: the file.
    """

    rewinds = True
    """True, because :meth:`rl.run.folder.RunFolder.rewind` removes the lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(SinkOptions())
        self._path = path

    def open(self, run: RunInfo, id: str) -> str:
        """Return the path. The file itself is opened by :meth:`log`, for each line."""
        return str(self._path)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            RunFailure: the file cannot be written.
        """
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
