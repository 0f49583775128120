"""The learning curve of a run as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.files import writing
from rl.run.metrics.no_gradient import cause_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]


def draw_curve(metrics: Records, path: Path, title: str) -> None:
    """Draw training reward, validation and test over the steps of a run.

    Args:
        metrics: the records of metrics.jsonl.
        path: the PNG to write.
        title: the title of the figure.

    Raises:
        RunFailure: the PNG cannot be written.
    """
    figure = curve(metrics, title)
    with writing(path):
        figure.savefig(path)


def curve(metrics: Records, title: str) -> Figure:
    """The figure that :func:`draw_curve` writes."""
    figure, axes = _axes(title)
    _draw_rewards(axes, [r for r in metrics if "reward" in r])
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
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure


def _draw_rewards(axes: Axes, steps: Records) -> None:
    """Draw each step's reward with its 95% interval, and a cross at steps without a gradient."""
    axes.plot(
        [r["step"] for r in steps],
        [r["reward"] for r in steps],
        color="#9db4c0",
        linewidth=1.2,
        label="training reward, 95% interval over tasks",
    )
    known = [r for r in steps if "reward_low" in r]
    axes.fill_between(
        [r["step"] for r in known],
        [r["reward_low"] for r in known],
        [r["reward_high"] for r in known],
        color="#9db4c0",
        alpha=0.3,
        linewidth=0,
    )
    silent = [r for r in steps if cause_in(r) is not None]
    if silent:
        axes.plot(
            [r["step"] for r in silent],
            [r["reward"] for r in silent],
            color="#90323d",
            marker="x",
            markersize=5,
            linestyle="none",
            label="no gradient from rewards",
        )


def _axes(title: str) -> tuple[Figure, Axes]:
    # Not with pyplot, which holds global state and looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.0), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel("learner updates")
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    return figure, axes


def draw_losses(metrics: Records, path: Path, title: str) -> None:
    """Draw the loss of each step, and the accuracy of each step that recorded an accuracy.

    Raises:
        RunFailure: the PNG cannot be written.
    """
    figure, axes = _axes(title)
    for key, colour in (("loss", "#1f5673"), ("accuracy", "#c1440e")):
        known = [r for r in metrics if key in r]
        if known:
            axes.plot([r["step"] for r in known], [r[key] for r in known], color=colour, label=key)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    with writing(path):
        figure.savefig(path)
