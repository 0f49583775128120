"""Metrics of a run as columns for curves, and the run's line in the list of runs."""

from __future__ import annotations

import re
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
    """A run's name, settings, state and results in a few numbers."""
    records, config, state = run.metrics(), run.config(), run.state()
    steps = [r for r in records if "reward" in r]
    checks = [r["eval/success"] for r in records if _is_number(r.get("eval/success"))]
    result, done = run.result(), max((r["step"] for r in records), default=0)
    env = _name(config.get("env"))
    return {
        "name": run.name,
        "env": env,
        "env_name": re.split(r"[\\/]", env)[-1] if ".py" in env else env,
        "algo": _name(config.get("algo")),
        "model": config.get("model"),
        "seed": config.get("seed"),
        "state": state,
        "steps": done,
        "of_steps": state["steps"] or config.get("steps"),
        "before": _tested(records, 0) or result.get("before"),
        "after": _after(records, result, done),
        "reward": _rounded([r["reward"] for r in steps if _is_number(r["reward"])]),
        "validation": _rounded(checks),
        "result": result,
        "written": _written(run),
    }


def _tested(records: Sequence[Mapping[str, Any]], step: int) -> dict[str, Any] | None:
    """Success on test tasks as measured after ``step``, or None if it was not measured."""
    for record in records:
        if record["step"] == step and _is_number(record.get("test/success")):
            return {k.removeprefix("test/"): v for k, v in record.items() if k.startswith("test/")}
    return None


def _after(
    records: Sequence[Mapping[str, Any]], result: Mapping[str, Any], done: int
) -> dict[str, Any] | None:
    """Success on test tasks after the last step. A result from before a resume is none."""
    if done and (found := _tested(records, done)):
        return found
    steps = result.get("steps")
    return None if _is_number(steps) and steps != done else result.get("after")


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


def _name(choice: object) -> str:
    """The name of an environment or an algorithm in config.json. Empty if there is none."""
    if isinstance(choice, Mapping):
        choice = choice.get("env_id") or choice.get("name")
    return "" if choice is None else str(choice)


def _rounded(values: Sequence[float]) -> list[float]:
    """At most 60 values with four digits, for a small curve."""
    every = max(1, -(-len(values) // 60))
    return [round(value, 4) for value in values[::every]]
