"""Steps per hour with ``staleness=0`` and ``staleness=2``, where tools are sometimes slow.

    python -m benchmarks.serving.staleness [--seeds 0 1 2] [--seconds 150]
                                           [--python INTERPRETER_WITH_VLLM]

``search-qa`` has simulated latencies: log-normal, mean 200 ms, one in a hundred above 2 s. For each
seed, both settings train for the same time, one after the other: with the default of 32 tasks per
step, and with 16, where waiting takes a larger share. With an interpreter that has vLLM, both also
train over a server. The figures are steps per hour, and the mean reward over the last quarter of
the steps that both runs made. Writes ``results/staleness.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.tables import as_text, interval
from benchmarks.train_runs import finished_run
from rl.run.folder import read_jsonl, versions
from rl.settings.train import TINY_LR

RESULTS = Path(__file__).parents[1] / "results" / "staleness.json"
COMMAND = "benchmarks.studies.worlds rl.train"
SETTINGS = ("steps=1000", "eval.test_tasks=0", "eval.every=1000", "save_every=1000")


def one(
    name: str, more: Sequence[str], seed: int, seconds: float, folder: Path
) -> list[dict[str, Any]]:
    """The steps of a run."""
    # Warm-started where nothing is slow; both begin with these weights.
    begun = folder / f"begun-seed-{seed}"
    first = ("env=search-qa", "steps=1", "eval.test_tasks=0", f"seed={seed}")
    finished_run("rl.train", first, begun)
    out = folder / f"{name}-seed-{seed}"
    words = [*SETTINGS, *more, "env=slow-search", f"model={begun / 'checkpoints/step-000001'}"]
    words += [f"optimizer.lr={TINY_LR}", f"seed={seed}"]
    words += [f"max_seconds={seconds}"]
    finished_run(COMMAND, words, out)
    return [record for record in read_jsonl(out / "metrics.jsonl") if "loss" in record]


def measure(
    row: str, words: Sequence[str], seeds: Sequence[int], seconds: float, folder: Path
) -> dict[str, Any]:
    """With and without rollouts beside learning, over the seeds."""
    each: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        each.setdefault(name, []).append(value)

    for seed in seeds:
        runs = {
            n: one(f"{row}-{n}", [*words, f"staleness={n}"], seed, seconds, folder) for n in (0, 2)
        }
        common = min(len(steps) for steps in runs.values())
        for staleness, steps in runs.items():
            spent = sum(step["step_time"] for step in steps)
            note(f"steps per hour, staleness={staleness}", 3600 * len(steps) / spent)
            last = steps[common - max(common // 4, 1) : common]
            note(f"reward, staleness={staleness}", fmean(step["reward"] for step in last))
        note("times the steps", len(runs[2]) / len(runs[0]))
        rewards = [each[f"reward, staleness={n}"][-1] for n in (2, 0)]
        note("reward, difference", rewards[0] - rewards[1])
        note("oldest", max(step["staleness/oldest"] for step in runs[2]))
    return {name: interval(values) for name, values in each.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--python", default="", help="the interpreter that has vLLM")
    parser.add_argument("--folder", type=Path, help="where runs are kept, to go on with them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    words = parser.parse_args()
    asked = {"32 tasks": [], "16 tasks": ["prompts=16"]}
    if words.python:
        asked["vllm-server"] = ["policy=vllm-server", f"policy.python={words.python}"]
    rows = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.folder or Path(temporary)
        for name, more in asked.items():
            rows[name] = measure(name, more, words.seeds, words.seconds, folder)
            columns = rows[name].items()
            print(
                as_text([{name: what, "mean [95%]": value} for what, value in columns]), flush=True
            )
    result = {**versions(), "seconds": words.seconds, "seeds": words.seeds, "rows": rows}
    words.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
