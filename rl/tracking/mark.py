"""Remembers which records a tracker has, in a file in the run's folder, for a resumed run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.errors import RunFailure
from rl.files import make_folder, replace_text

FOLDER = "tracking"
"""Name of the folder, within the run's folder, that has one file for each sink."""


class Mark:
    """A run's id in a tracker, and the last record that the tracker has.

    Args:
        path: the file, or None to keep the mark in memory only.

    Raises:
        RunFailure: the file is no mark.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.id = ""
        self.step = -1
        """The last step with metrics in the tracker, or -1 if there is none."""
        self._keys: set[str] = set()
        """The metrics of ``step`` that the tracker already has."""
        if path is not None and path.exists():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
                self.id, self.step = str(known["id"]), int(known["step"])
                self._keys = set(known["keys"])
            except (ValueError, KeyError, TypeError) as error:
                raise RunFailure(
                    f"{path} is no mark of a sink ({error!r}): delete it to start a new run in "
                    f"the tracker"
                ) from error

    def opened(self, id: str) -> None:
        """Store the run's id."""
        self.id = id
        self._write()

    def missing(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of a step that the tracker does not have yet."""
        if step != self.step:
            return dict(metrics) if step > self.step else {}
        return {key: value for key, value in metrics.items() if key not in self._keys}

    def delivered(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record that the tracker has these metrics of a step."""
        self._keys = {*metrics, *(self._keys if step == self.step else ())}
        self.step = step
        self._write()

    def rewound(self, step: int) -> None:
        """Record that the tracker dropped all steps after ``step``."""
        if step < self.step:
            self.step, self._keys = step, set()

    def _write(self) -> None:
        if self._path is None:
            return
        make_folder(self._path.parent)
        record = {"id": self.id, "step": self.step, "keys": sorted(self._keys)}
        replace_text(self._path, json.dumps(record) + "\n")
