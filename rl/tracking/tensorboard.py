"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.tracking.sink import Ending, EpisodeText, RunInfo, Sink


class TensorBoard(Sink):
    """Writes event files under ``tensorboard/``, which ``tensorboard --logdir RUN`` shows."""

    package = "tensorboard"
    extra = "turnwise[tensorboard]"
    rewinds = True

    def open(self, run: RunInfo, id: str) -> str:
        """Start an event file. TensorBoard hides steps of older files that this run repeats."""
        from torch.utils.tensorboard import SummaryWriter

        self._folder = run.folder / "tensorboard"
        self._step = run.step
        purge_step = run.step + 1 if id else None
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step)
        if not id:
            rows = [f"| {key} | {value} |" for key, value in run.config.items()]
            self._writer.add_text("config", "\n".join(["| key | value |", "|---|---|", *rows]))
        return str(self._folder)

    @property
    def place(self) -> str:
        """The command that shows the event files."""
        return f"tensorboard --logdir {self._folder}"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write a scalar for each number, and the text of episodes."""
        self._step = step
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)
            elif isinstance(value, EpisodeText):
                # TensorBoard reads Markdown: indented lines are shown as they are.
                self._writer.add_text(name, textwrap.indent(value, "    ", lambda _: True), step)
        self._writer.flush()

    def finish(self, ending: Ending) -> None:
        """Write the result and the images, and close the file."""
        for name, path in ending.images.items():
            self._writer.add_image(name, _pixels(path), self._step, dataformats="HWC")
        rows = [f"| {key} | {value} |" for key, value in ending.result.items()]
        if rows:
            table = "\n".join(["| key | value |", "|---|---|", *rows])
            self._writer.add_text("result", table, self._step)
        self._writer.close()


def _pixels(path: Path) -> Any:
    """A PNG as an array of bytes, height by width by colours."""
    import matplotlib.image

    return (matplotlib.image.imread(path) * 255).astype("uint8")
