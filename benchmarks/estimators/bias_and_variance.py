"""Bias and variance of every estimator, compared with exactly known policy gradients.

    OMP_NUM_THREADS=1 python -m benchmarks.estimators.bias_and_variance [part of a name]

``benchmarks.estimators.worlds`` defines the worlds. Each has two tasks; an update has a group of
eight episodes of each task.

- bandit: one turn of one token, three arms.
- delayed: up to four turns of one or two tokens, with a reward only at the end. Between turns the
  state is one of two, so different episodes of a group reach the same state. Some actions end the
  episode early.
- decided: the first of five turns determines almost all of the final reward.

For each estimator, updates are drawn until the standard error of its mean gradient is at most 2% of
the gradient's norm, or 4% without a theoretical mean. Standard error and error are norms over all
logits. The error is the difference from the theoretical mean, in standard errors. ``scale`` is the
projection of the mean on the exact gradient. ``bias`` is the distance of the mean, divided by its
scale, from the exact gradient, relative to the norm of the exact gradient (squared, less the
squared standard error). ``noise`` is the standard deviation of one update, relative to the norm of
its theoretical mean, or along the exact gradient.

Prints tables and writes benchmarks/results/estimators.json. With part of a name (``rows grpo``,
``divergence``), only the matching estimators are measured again. The drawn updates do not depend on
the selection.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.estimators.cases import MEMBERS, Case, cases
from benchmarks.estimators.tabular import Setting, draw_updates
from benchmarks.estimators.updates import Trials, Updates, gradients, looks_at_all
from benchmarks.estimators.worlds import settings, truth

RESULTS = Path(__file__).parents[1] / "results" / "estimators.json"
PARTS = ("advantages", "rows", "corrections", "divergence")
BLOCK, LEAST, MOST = 500, 1000, 20_000
"""Updates that are drawn at once; in all, at least and at most."""
PRECISION, ROUGHLY = 0.02, 0.04
"""The mean's standard error, in norms of the gradient: where theory gives the mean, and where it
does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The measurements of a case."""

    part: str
    name: str
    setting: str
    unbiased: bool
    """Whether its mean is, by theory, a known multiple of the truth."""
    updates: int
    standard_error: float
    """Standard error of the mean, in norms of the gradient, after removing the mean's scale."""
    error: float | None
    """Distance of the mean from theory's prediction, in standard errors, or None without one."""
    scale: float
    bias: float | None
    """None where the mean vanishes."""
    noise: float
    why: str


class Blocks:
    """Updates of a setting, drawn once for all estimators."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._seed = seed
        self._made: dict[tuple[int, bool, int], list[Updates]] = {}

    def block(self, index: int, *, apart: bool, rollouts: int) -> list[Updates]:
        """A block of updates, in one batch or in one for each.

        Args:
            index: of the block; it says what is drawn.
            apart: whether each update has a batch of its own.
            rollouts: continuations that value each turn; 0: no turn is valued.
        """
        key = (index, apart, rollouts)
        if key not in self._made:
            generator = np.random.default_rng([self._seed, index])
            updates = draw_updates(self.setting, BLOCK, MEMBERS, generator)
            record = Trials(self.setting, rollouts, generator).trajectories if rollouts else None
            parts = [[update] for update in updates] if apart else [updates]
            self._made[key] = [Updates.of(self.setting, part, record) for part in parts]
        return self._made[key]


def measure(case: Case, blocks: Blocks, truth: Tensor) -> Finding:
    """Draw updates until the mean is known well enough."""
    apart = looks_at_all(case.row)
    wanted = case.expected * truth if isinstance(case.expected, float) else case.expected
    total, squares, count = torch.zeros_like(truth), torch.zeros_like(truth), 0
    rollouts = case.row.advantage.turn_rollouts
    precision = ROUGHLY if wanted is None else PRECISION
    while True:
        for updates in blocks.block(count // BLOCK, apart=apart, rollouts=rollouts):
            got = gradients(updates, case.row, case.values)
            total += got.sum(0)
            squares += got.square().sum(0)
        count += BLOCK
        mean = total / count
        variance = ((squares / count - mean.square()) * count / (count - 1)).sum()
        error = (variance / count).sqrt()
        scale = (mean * truth).sum() / truth.square().sum()
        size = truth.norm() * scale.abs()
        if wanted is not None:
            size = wanted.norm() if wanted.any() else truth.norm()
        if (count >= LEAST and error <= precision * size) or count >= MOST:
            break
    apart_from_scale = (mean / scale - truth).square().sum() - (error / scale).square()
    bias = (apart_from_scale.clamp_min(0).sqrt() / truth.norm()).item()
    return Finding(
        part=case.part,
        name=case.name,
        setting=case.setting,
        unbiased=isinstance(case.expected, float),
        updates=count,
        standard_error=(error / size).item(),
        error=None if wanted is None else ((mean - wanted).norm() / error).item(),
        scale=scale.item(),
        bias=None if wanted is not None and not wanted.any() else bias,
        noise=(variance.sqrt() / size).item(),
        why=case.why,
    )


def table(findings: Sequence[Mapping[str, Any]]) -> str:
    """Findings in Markdown."""
    lines = [
        "| estimator | where | scale | bias | noise | error | why biased |",
        "|---|---|---|---|---|---|---|",
    ]
    for f in findings:
        error = "" if f["error"] is None else f"{f['error']:.1f}"
        bias = "" if f["bias"] is None else "none" if f["unbiased"] else f"{f['bias']:.2f}"
        lines.append(
            f"| `{f['name']}` | {f['setting']} | {f['scale']:.3g} | {bias} "
            f"| {f['noise']:.2f} | {error} | {f['why']} |"
        )
    return "\n".join(lines)


def page_tables(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tables of docs/estimators.md: all but whitened advantages and deviations over n."""
    shown = [f for f in findings if "whiten" not in f["name"] and "std=biased" not in f["name"]]
    return [table([f for f in shown if f["part"] == part]) for part in PARTS]


def main() -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    logging.getLogger("rl.credit.assignment").setLevel(logging.ERROR)
    made = settings()
    truths = {name: truth(name, setting) for name, setting in made.items()}
    blocks = {name: Blocks(setting, 7) for name, setting in made.items()}
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    known = json.loads(RESULTS.read_text())["findings"] if chosen else []
    before = {(f["part"], f["name"], f["setting"]): f for f in known}
    findings = []
    for case in cases(made):
        if chosen in f"{case.part} {case.name} {case.setting}":
            finding = measure(case, blocks[case.setting], truths[case.setting])
            findings.append(asdict(finding))
            print(json.dumps(findings[-1]), flush=True)
        else:
            findings.append(before[case.part, case.name, case.setting])
    for part in PARTS:
        print(f"\n{part}\n\n{table([f for f in findings if f['part'] == part])}")
    print(f"\n{time.process_time() - began:.0f} CPU seconds")
    record = {"benchmark": "estimators", "members": MEMBERS, "findings": findings}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
