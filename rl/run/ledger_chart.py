"""Draws where each step's seconds went, as a PNG: a panel for each lane, stacked by state.

A lane is a part of the run, such as the rollouts or the learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.files import writing

_COLOURS = {
    "generate": "#1f5673",
    "environment": "#759aab",
    "tool": "#463f57",
    "partner": "#7a5c9e",
    "queue": "#d9a05b",
    "sampling": "#dbe6ea",
    "learn": "#90323d",
    "sync": "#c46a4a",
    "held": "#b04f6f",
    "idle": "#e8e8e8",
}
_OTHERS = ("#7b8f6a", "#a3b18a", "#588157", "#b5a27c", "#8d99ae")


def draw_ledger(metrics: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the seconds of each lane by state over the steps of a run.

    Args:
        metrics: the records of metrics.jsonl.
        path: the PNG to write.
        title: the title of the figure.

    Raises:
        RunFailure: the PNG cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = [r for r in metrics if "time/wall" in r]
    lanes = lanes_of(records)
    figure = Figure(figsize=(8.4, 1.2 + 1.9 * max(1, len(lanes))), dpi=120)
    FigureCanvasAgg(figure)
    steps = [r["step"] for r in records]
    others = iter(_OTHERS * 4)
    colours = dict(_COLOURS)
    for row, (lane, states) in enumerate(lanes.items(), start=1):
        axes = figure.add_subplot(len(lanes), 1, row)
        below = [0.0] * len(steps)
        for state in states:
            seconds = [r.get(f"time/{lane}/{state}", 0.0) for r in records]
            colour = colours.get(state) or colours.setdefault(state, next(others))
            axes.bar(steps, seconds, 1.0, below, color=colour, label=state)
            below = [b + s for b, s in zip(below, seconds, strict=True)]
        axes.set_ylabel(f"{lane}\nseconds")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.spines[["top", "right"]].set_visible(False)
        if row == len(lanes):
            axes.set_xlabel("step")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    with writing(path):
        figure.savefig(path)


def lanes_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The states of each lane that have any seconds; ``idle`` is last."""
    lanes: dict[str, list[str]] = {}
    for record in records:
        for key, seconds in record.items():
            _, *rest = key.split("/")
            if key.startswith("time/") and len(rest) == 2 and seconds > 0:
                states = lanes.setdefault(rest[0], [])
                if rest[1] not in states:
                    states.append(rest[1])
    return {lane: sorted(states, key=lambda s: (s == "idle", s)) for lane, states in lanes.items()}
