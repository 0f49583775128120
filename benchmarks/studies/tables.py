"""Tables of means over seeds with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from scipy import stats

Row = Mapping[str, Any]
"""Columns by name: words, numbers, or what :func:`interval` returns."""


def interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean of a value per seed, the ends of its 95% t-interval, and the values.

    Of one seed there is no interval (NaN); of equal values it is the value.
    """
    mean, half = fmean(values), math.nan
    if len(values) > 1:
        half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return {"mean": mean, "low": mean - half, "high": mean + half, "each": list(values)}


def as_text(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, ["---"] * len(names)]
    cells += [[_cell(row.get(name, "")) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _cell(value: object) -> str:
    match value:
        case {"mean": mean, "low": low, "high": high}:
            return f"{_cell(mean)} [{_cell(low)}, {_cell(high)}]"
        case float():
            return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return str(value)
