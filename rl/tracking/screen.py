"""The screen as a sink: a row or a line for each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.run.display.screen import Display
from rl.tracking.sink import RunInfo, Sink, SinkOptions


class OnScreen(Sink):
    """Shows the steps of a run; the run calls it directly.

    Args:
        display: the screen.
    """

    def __init__(self, display: Display) -> None:
        super().__init__(SinkOptions())
        self._display = display

    def open(self, run: RunInfo, id: str) -> str:
        """Do nothing, as the display is already open."""
        return ""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a step; evaluations between steps are reported as lines."""
        if "step_time" in metrics:
            self._display.step(step, metrics)
