"""Formats the main numbers of an evaluation as a table. ``--json`` prints all numbers instead."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def table_text(result: Mapping[str, Any]) -> str:
    """The rows of :func:`rows_of` as a table of two columns."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows_of(result):
        table.add_row(Text(name), Text(value))
    page = io.StringIO()
    Console(file=page, width=200, highlight=False).print(table, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def rows_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The main numbers of an evaluation with their labels. Absent numbers are omitted."""
    yield "environment", str(result["env"])
    yield "model", str(result["model"])
    yield "tasks", str(result["played"])
    yield "episodes", f"{result['episodes']}"
    low, high = result["success_low"], result["success_high"]
    yield str(result["score"]), f"{result['success']:.3f}  95% interval [{low:.3f}, {high:.3f}]"
    for key, value in result.items():
        if key.startswith("pass@"):
            yield key, f"{value:.3f}"
        elif key.startswith("parts/") and key.endswith("/success"):
            yield f"success of {key.split('/')[1]}", f"{value:.3f}"
    yield from _optional(result)


def _optional(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "reward" in result:
        yield "reward", f"{result['reward']:.3f}"
    if "completions/mean_length" in result:
        mean, least, most = (result[f"completions/{k}_length"] for k in ("mean", "min", "max"))
        yield "sampled tokens", f"{mean:.1f} per episode, from {least:.0f} to {most:.0f}"
        yield "answers cut", f"{result['completions/clipped_ratio']:.3f} of the episodes"
        yield "turns", f"{result['num_turns']:.2f} per episode"
    if result.get("tools/call_frequency"):
        failed = result.get("tools/failure_frequency", 0.0)
        calls = f"{result['tools/call_frequency']:.2f} per episode"
        yield "tool calls", f"{calls}, {failed:.3f} of them failed"
    if result.get("failures"):
        yield "failed episodes", f"{result['failures']:.0f}, not counted above"
