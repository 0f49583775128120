"""Formats the main numbers of an evaluation as a table. ``--json`` prints all numbers instead."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_RETRIES = "policy/retries/"
_KINDS = ("pass", "maj", "best", "success_within_tokens")
_CURVES = re.compile(r"(pass@|maj@|best@|success_within_tokens/)[0-9]+")
"""Keys of numbers at several k, or within several budgets of tokens."""
_BOTH, _ENDS = ("", "compare/"), ("", "_low", "_high")
_SINGLE = (
    ("distinct answers per task", "answers/distinct", 2),
    ("entropy of answers, nats", "answers/entropy", 3),
    ("sampled tokens per episode", "tokens/per_episode", 1),
    ("sampled tokens in all", "tokens/total", 0),
)
"""Labels, keys and digits of single numbers of both models."""
_WIDTH = 40
"""Maximum width of a model's name above its column."""


def table_text(result: Mapping[str, Any]) -> str:
    """The main numbers of an evaluation as a table.

    The table has two columns of :func:`rows_of`. For a comparison, the numbers of both models stand
    side by side below them, as in :func:`columns_of`.
    """
    text = _grid(rows_of(result))
    if "compare/model" in result:
        text += "\n" + _grid(columns_of(result)) + "\n" + _grid(_test_rows(result))
    return text


def _grid(rows: Iterable[Sequence[str]]) -> str:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*map(Text, row))
    page = io.StringIO()
    Console(file=page, width=250, highlight=False).print(table, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def suite_text(result: Mapping[str, Any]) -> str:
    """The results of a suite as a table with a row for each data set, and two averages."""
    sets: Mapping[str, Mapping[str, Any]] = result["sets"]
    is_compared = any("compare/difference" in found for found in sets.values())
    table = Table.grid(padding=(0, 2))
    heads = ["data set", "tasks", "episodes", "success", "95% interval"]
    table.add_row(*heads, *(["difference", "95% interval", "p-value"] if is_compared else []))
    for name, found in sets.items():
        numbers = _in_row(found, "success", "success_low", "success_high")
        cells = [name, str(found["tasks"]), str(found["episodes"]), *numbers]
        table.add_row(*cells, *_difference(found))
    total = [str(result["tasks"]), str(result["episodes"])]
    numbers = _in_row(result, "success", "success_low", "success_high")
    table.add_row("average over tasks", *total, *numbers)
    numbers = _in_row(result, *(f"average_over_sets{end}" for end in ("", "_low", "_high")))
    table.add_row("average over data sets", "", "", *numbers)
    page = io.StringIO()
    Console(file=page, width=200, highlight=False, markup=False).print(table, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _in_row(found: Mapping[str, Any], value: str, low: str, high: str) -> tuple[str, str]:
    return f"{found[value]:.3f}", f"[{found[low]:.3f}, {found[high]:.3f}]"


def _difference(found: Mapping[str, Any]) -> list[str]:
    if "compare/difference" not in found:
        return []
    low, high = found["compare/difference_low"], found["compare/difference_high"]
    interval = f"[{low:+.3f}, {high:+.3f}]"
    return [f"{found['compare/difference']:+.3f}", interval, f"{found['compare/p_value']:.4f}"]


def rows_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The main numbers of an evaluation with their labels. Absent numbers are omitted."""
    yield "environment", str(result["env"])
    yield "model", str(result["model"])
    yield "tasks", str(result["played"])
    yield "episodes", f"{result['episodes']}"
    if "temperature" in result:
        yield "sampling", _sampling(result)
    low, high = result["success_low"], result["success_high"]
    if "compare/model" not in result:
        yield str(result["score"]), f"{result['success']:.3f}  95% interval [{low:.3f}, {high:.3f}]"
        yield from _rates(result)
    for key, value in result.items():
        if key.startswith("parts/") and key.endswith("/success"):
            yield f"success of {key.split('/')[1]}", f"{value:.3f}"
    yield from _optional(result)


def _sampling(result: Mapping[str, Any]) -> str:
    return (
        f"temperature {result['temperature']:g}, top_p {result['top_p']:g}, "
        f"top_k {result['top_k']}, seed {result['seed']}, "
        f"at most {result['max_tokens']} tokens per turn"
    )


def _rates(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """pass@k, maj@k and best@k, and what the number of tasks allows to say."""
    for key, value in result.items():
        if _CURVES.fullmatch(key):
            label = key.replace("success_within_tokens/", "within tokens: ")
            yield label, _with_interval(result, key, value)
    if "passes/std" in result:
        low, high = result["passes/low"], result["passes/high"]
        spread = f"standard deviation {result['passes/std']:.3f}, from {low:.3f} to {high:.3f}"
        yield f"{result['passes']} passes", spread
    if "answers/distinct" in result:
        distinct, entropy = result["answers/distinct"], result["answers/entropy"]
        yield "distinct answers", f"{distinct:.2f} per task, entropy {entropy:.3f} nats"
    if result.get("detectable_difference", math.inf) < math.inf:
        difference = result["detectable_difference"]
        yield "detectable", f"a difference of {difference:.3f} between two models, with 80% power"


def _with_interval(result: Mapping[str, Any], key: str, value: float) -> str:
    if f"{key}/low" not in result:
        return f"{value:.3f}"
    return f"{value:.3f}  95% interval [{result[f'{key}/low']:.3f}, {result[f'{key}/high']:.3f}]"


def columns_of(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The numbers of both models of a comparison, and the paired differences.

    Yields:
        The label, the number of ``model``, the number of the model in ``compare``, and the
        difference with its 95% interval. Absent numbers are empty. The first row has the heads.
    """
    heads = (_short(str(result["model"])), _short(str(result["compare/model"])))
    yield "95% intervals", *heads, f"difference, paired by {result['compare/tasks']} tasks"
    score = str(result["score"])
    cells = (_in_row(result, *(f"{of}success{end}" for end in _ENDS)) for of in _BOTH)
    yield score, *(" ".join(cell) for cell in cells), " ".join(_difference(result)[:2])
    names = [key for key in result if _CURVES.fullmatch(key)]
    names += [k for key in result if _CURVES.fullmatch(k := key.removeprefix("compare/"))]
    for name in sorted(dict.fromkeys(names), key=_order):
        label = name.replace("success_within_tokens/", "within tokens: ")
        found = [_cell(result, f"{of}{name}", "") for of in _BOTH]
        yield label, *found, _cell(result, f"compare/difference/{name}", "+")
    for label, key, digits in _SINGLE:
        values = [result.get(f"{of}{key}") for of in _BOTH]
        if any(value is not None for value in values):
            yield label, *("" if v is None else f"{v:,.{digits}f}" for v in values), ""


def _short(model: str) -> str:
    """A model's name, of which a column shows the end."""
    return model if len(model) <= _WIDTH else f"...{model[3 - _WIDTH :]}"


def _order(name: str) -> tuple[int, int]:
    kind, number = re.split(r"[@/]", name)
    return list(_KINDS).index(kind), int(number)


def _cell(result: Mapping[str, Any], key: str, sign: str) -> str:
    if result.get(key) is None:
        return ""
    if f"{key}/low" not in result:
        return f"{result[key]:{sign}.3f}"
    low, high = result[f"{key}/low"], result[f"{key}/high"]
    return f"{result[key]:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def _test_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The paired test of a comparison."""
    if "compare/settings" in result:
        yield "other settings", result["compare/settings"]
    by = result["compare/p_value_by"]
    yield "p-value", f"{result['compare/p_value']:.3g}  two-sided permutation test ({by})"
    if found := result.get("compare/warning"):
        yield "warning", found


def _optional(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "reward" in result:
        yield "reward", f"{result['reward']:.3f}"
    if "completions/mean_length" in result:
        mean, least, most = (result[f"completions/{k}_length"] for k in ("mean", "min", "max"))
        spent = f", {result['tokens/total']:,} in all" if "tokens/total" in result else ""
        yield "sampled tokens", f"{mean:.1f} per episode, from {least:.0f} to {most:.0f}{spent}"
        yield "answers cut", f"{result['completions/clipped_ratio']:.3f} of the episodes"
        yield "turns", f"{result['num_turns']:.2f} per episode"
    if result.get("tools/call_frequency"):
        failed = result.get("tools/failure_frequency", 0.0)
        calls = f"{result['tools/call_frequency']:.2f} per episode"
        yield "tool calls", f"{calls}, {failed:.3f} of them failed"
    if result.get("failures"):
        yield "failed episodes", f"{result['failures']:.0f}, not counted above"
    if "policy/requests" in result:
        yield "requests", requests_text(result)


def requests_text(result: Mapping[str, Any]) -> str:
    """The numbers of requests to a chat API, and of attempts that were repeated, by reason.

    Example:
        >>> requests_text({"policy/requests": 9, "policy/retries": 2, "policy/retries/timeout": 2})
        '9 answered, 2 attempts repeated (2 timeout)'
    """
    reasons = ", ".join(
        f"{count:.0f} {key.removeprefix(_RETRIES).replace('_', ' ')}"
        for key, count in result.items()
        if key.startswith(_RETRIES)
    )
    repeated = f"{result['policy/retries']:.0f} attempts repeated"
    return f"{result['policy/requests']:.0f} answered, {repeated}{reasons and f' ({reasons})'}"
