"""The learning curve of a run, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.run.files import writing


def draw_curve(metrics: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw training reward, validation and test over the steps of a run.

    Args:
        metrics: the run's records, as metrics.jsonl has them.
        path: the PNG to write.
        title: what stands above it.

    Raises:
        RunFailure: it cannot be written.
    """
    # Drawn on a canvas of its own: pyplot would hold global state and ask for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [r["step"] for r in metrics if "reward" in r]
    axes.plot(
        steps,
        [r["reward"] for r in metrics if "reward" in r],
        color="#9db4c0",
        linewidth=1.2,
        label="training reward",
    )
    checks = [r for r in metrics if "eval/success" in r]
    axes.plot(
        [r["step"] for r in checks],
        [r["eval/success"] for r in checks],
        color="#1f5673",
        marker="o",
        markersize=4,
        linewidth=2,
        label="validation tasks",
    )
    tests = [r for r in metrics if "test/success" in r]
    axes.errorbar(
        [r["step"] for r in tests],
        [r["test/success"] for r in tests],
        yerr=[
            [r["test/success"] - r["test/success_low"] for r in tests],
            [r["test/success_high"] - r["test/success"] for r in tests],
        ],
        color="#c1440e",
        fmt="s",
        markersize=5,
        capsize=3,
        label="test tasks, 95% interval",
    )
    axes.set_xlabel("learner updates")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    with writing(path):
        figure.savefig(path)
