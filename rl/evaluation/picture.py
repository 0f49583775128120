"""The picture of an evaluation: pass@k, and the success within budgets of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.evaluation.measures import points_of
from rl.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"pass": "#1f5673", "maj": "#c1440e", "best": "#3a7d44", "compare/pass": "#8d99ae"}
_LABELS = {"pass": "pass@k", "maj": "maj@k", "best": "best of k by the reward model"}


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

    figure = Figure(figsize=(9, 3.6), dpi=120)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_rates(left, result)
    _draw_tokens(right, result)
    settings = f"temperature {result['temperature']:g}, seed {result['seed']}"
    figure.suptitle(f"{result['env']}, {result['played']}, {settings}", fontsize=9)
    figure.tight_layout()
    return figure


def _draw_rates(axes: Axes, result: Mapping[str, Any]) -> None:
    """pass@k, maj@k and best of k, each with its 95% interval."""
    labels = {**_LABELS, "compare/pass": f"pass@k of {result.get('compare/model', '')}"}
    for name, label in labels.items():
        points = points_of(result, f"{name}@") or _single(name, result)
        if not points:
            continue
        ks, values = zip(*points, strict=True)
        axes.plot(ks, values, color=_COLORS[name], marker="o", markersize=3, label=label)
        bounds = [_bounds(name, k, result) for k in ks]
        if all(bound is not None for bound in bounds):
            low, high = zip(*(bound for bound in bounds if bound is not None), strict=True)
            axes.fill_between(ks, low, high, color=_COLORS[name], alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("k (episodes per task)")
    axes.set_ylabel(f"{result['score']}, 95% interval by task")
    axes.legend(frameon=False, fontsize=7)


def _single(name: str, result: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The success as a point at k = 1, for evaluations with one episode per task."""
    key = {"pass": "success", "compare/pass": "compare/success"}.get(name, "")
    return [(1, result[key])] if key in result else []


def _bounds(name: str, k: int, result: Mapping[str, Any]) -> tuple[float, float] | None:
    key = f"{name}@{k}/"
    return (result[key + "low"], result[key + "high"]) if key + "low" in result else None


def _draw_tokens(axes: Axes, result: Mapping[str, Any]) -> None:
    """The success if episodes above a budget of sampled tokens count as wrong."""
    points = points_of(result, "success_within_tokens/")
    axes.set_xlabel("budget of sampled tokens per episode")
    axes.set_ylabel(f"{result['score']} within the budget")
    if points:
        budgets, values = zip(*points, strict=True)
        axes.plot(budgets, values, color=_COLORS["pass"], marker="o", markersize=3)
        axes.set_xscale("log", base=2)
