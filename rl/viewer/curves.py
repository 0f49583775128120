"""Metrics of a run as columns for curves, and the run's line in the list of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.run.metrics.no_gradient import cause_in
from rl.viewer.runs import Run

MAIN = (
    "reward",
    "eval/success",
    "test/success",
    "loss",
    "accuracy",
    "entropy",
    "grad_norm",
    "kl",
    "completions/mean_length",
    "completions/clipped_ratio",
    "frac_reward_zero_std",
    "num_turns",
    "tools/call_frequency",
    "tools/failure_frequency",
    "sampling/logp_difference_max",
    "sampling/ratio_outside",
    "clip_ratio/region_mean",
    "failures",
    "staleness/mean",
    "step_time",
    "tokens_per_second",
)
"""Metrics whose curves a run's page shows, in this order."""
_BOUNDS = ("_low", "_high")


def curves(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Metrics as columns, with their intervals where a run recorded these.

    Args:
        records: the records of metrics.jsonl.
        names: the metrics; a name that ends in "*" stands for all metrics with this beginning. If
            empty, the metrics of :data:`MAIN` that the run has.
    """
    every = sorted({k for r in records for k, v in r.items() if _is_number(v)} - {"step"})
    chosen = [name for name in MAIN if name in every]
    if names:
        chosen = [name for name in every if any(_matches(name, wanted) for wanted in names)]
    return {
        "every": every,
        "curves": [_curve(records, name) for name in chosen],
        "no_gradient": [[r.get("step"), cause_in(r)] for r in records if cause_in(r) is not None],
    }


def summary(run: Run) -> dict[str, Any]:
    """A run's name, settings, status and results in a few numbers."""
    records, config = run.metrics(), run.config()
    steps = [r for r in records if "reward" in r]
    checks = [r["eval/success"] for r in records if _is_number(r.get("eval/success"))]
    result = run.result()
    return {
        "name": run.name,
        "env": _name(config.get("env")),
        "algo": _name(config.get("algo")),
        "model": config.get("model"),
        "seed": config.get("seed"),
        "state": run.state(),
        "steps": max((r.get("step", 0) for r in records), default=0),
        "of_steps": config.get("steps"),
        "reward": _rounded([r["reward"] for r in steps if _is_number(r["reward"])]),
        "validation": _rounded(checks),
        "result": result,
        "written": _written(run),
    }


def _written(run: Run) -> float:
    """When the run's folder changed; 0 if it was removed meanwhile."""
    try:
        return run.folder.stat().st_mtime
    except OSError:
        return 0.0


def _curve(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    known = [r for r in records if _is_number(r.get(name)) and _is_number(r.get("step"))]
    made: dict[str, Any] = {
        "name": name,
        "steps": [r["step"] for r in known],
        "values": [r[name] for r in known],
    }
    bounds = [name + bound for bound in _BOUNDS]
    if known and all(_is_number(r.get(bound)) for r in known for bound in bounds):
        made["low"], made["high"] = ([r[bound] for r in known] for bound in bounds)
    return made


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(choice: object) -> object:
    """The name of an environment or an algorithm in config.json."""
    if isinstance(choice, Mapping):
        return choice.get("env_id") or choice.get("name")
    return choice


def _rounded(values: Sequence[float]) -> list[float]:
    """At most 60 values with four digits, for a small curve."""
    every = max(1, -(-len(values) // 60))
    return [round(value, 4) for value in values[::every]]
