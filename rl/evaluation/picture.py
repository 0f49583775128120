"""The picture of an evaluation: pass@k, the success within budgets of tokens, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.evaluation.measures import WITHIN, points_of
from rl.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"pass": "#1f5673", "maj": "#c1440e", "best": "#3a7d44"}
_LABELS = {"pass": "pass@k", "maj": "maj@k", "best": "best of k by the reward model"}
_MODELS = (("", "-"), ("compare/", "--"))
"""Start of the keys of each model's numbers, and the style of its lines."""


def draw_evaluation(result: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of a result.

    Args:
        result: the content of result.json.
        path: the PNG to write.

    Raises:
        RunFailure: the PNG cannot be written.
    """
    with writing(path):
        picture(result).savefig(path)


def picture(result: Mapping[str, Any]) -> Figure:
    """The figure that :func:`draw_evaluation` writes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    differences = points_of(result, "compare/difference/pass@")
    panels = 3 if differences else 2
    figure = Figure(figsize=(4.5 * panels, 3.6), dpi=120)
    FigureCanvasAgg(figure)
    left, right, *more = figure.subplots(1, panels)
    _draw_rates(left, result)
    _draw_tokens(right, result)
    for axes in more:
        _draw_differences(axes, result)
    settings = f"temperature {result['temperature']:g}, seed {result['seed']}"
    figure.suptitle(f"{result['env']}, {result['played']}, {settings}", fontsize=9)
    figure.tight_layout()
    return figure


def _draw_rates(axes: Axes, result: Mapping[str, Any]) -> None:
    """pass@k, maj@k and best of k, each with its 95% interval."""
    for of, style in _MODELS:
        whose = f" of {result['compare/model']}" if of and "compare/model" in result else ""
        for name, label in _LABELS.items():
            points = points_of(result, f"{of}{name}@") or _single(f"{of}{name}", result)
            _draw(axes, result, f"{of}{name}@", points, _COLORS[name], style, f"{label}{whose}")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("k (episodes per task)")
    axes.set_ylabel(f"{result['score']}, 95% interval by task")
    axes.legend(frameon=False, fontsize=7, handlelength=3)


def _single(name: str, result: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The success as a point at k = 1, for evaluations with one episode per task."""
    key = {"pass": "success", "compare/pass": "compare/success"}.get(name, "")
    return [(1, result[key])] if key in result else []


def _draw(
    axes: Axes,
    result: Mapping[str, Any],
    prefix: str,
    points: Sequence[tuple[int, float]],
    color: str,
    style: str = "-",
    label: str = "",
) -> None:
    """A curve of the keys ``PREFIXnumber``, with their 95% intervals if all have one."""
    if not points:
        return
    numbers, values = zip(*points, strict=True)
    axes.plot(numbers, values, style, color=color, marker="o", markersize=3, label=label)
    keys = [f"{prefix}{number}" for number in numbers]
    if all(f"{key}/low" in result for key in keys):
        low, high = ([result[f"{key}/{end}"] for key in keys] for end in ("low", "high"))
        axes.fill_between(numbers, low, high, color=color, alpha=0.15, linewidth=0)


def _draw_tokens(axes: Axes, result: Mapping[str, Any]) -> None:
    """The success if episodes above a budget of sampled tokens count as wrong."""
    axes.set_xlabel("budget of sampled tokens per episode")
    axes.set_ylabel(f"{result['score']} within the budget")
    for of, style in _MODELS:
        prefix = f"{of}{WITHIN}"
        if points := points_of(result, prefix):
            label = str(result.get(f"{of}model", ""))
            _draw(axes, result, prefix, points, _COLORS["pass"], style, label)
            axes.set_xscale("log", base=2)
    if "compare/model" in result and axes.get_lines():
        axes.legend(frameon=False, fontsize=7, handlelength=3)


def _draw_differences(axes: Axes, result: Mapping[str, Any]) -> None:
    """The paired difference of pass@k between both models."""
    prefix = "compare/difference/pass@"
    _draw(axes, result, prefix, points_of(result, prefix), _COLORS["pass"])
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("k (episodes per task)")
    axes.set_ylabel("difference of pass@k, paired by task")
