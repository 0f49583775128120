"""Learning with vLLM servers, compared with the local policy, and reproducibility of such runs.

    python -m benchmarks.serving.vllm_learning [--seeds 0 1 2] [--python INTERPRETER_WITH_VLLM]

``search-qa`` with model=tiny makes 50 updates from the same warm start for each seed: with the
local policy, with a vLLM server, and for the first seed also with ``staleness=2``. The figures are
success on test tasks, on which no choice depends, compared by seed with the local policy; the
reward over the last ten updates; and the largest difference between the log-probabilities of server
and learner at each sync. Then ``rl.replay`` repeats the updates of the asynchronous run and reports
whether the weights are equal bit for bit. Writes ``results/vllm_learning.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.studies.tables import as_text, interval
from benchmarks.train_runs import train_run
from rl.run.folder import read_jsonl, versions

RESULTS = Path(__file__).parents[1] / "results" / "vllm_learning.json"
TASK = ("env=search-qa", "env.hops=2", "steps=50", "eval.every=10")
SERVER = ("policy=vllm-server",)
AHEAD = "vllm-server, staleness=2"
ROWS = {
    "local": (),
    "vllm-server": SERVER,
    AHEAD: (*SERVER, "staleness=2"),
}
LAST = 10
REPLAY_S = 1800.0


def one(row: str, seed: int, python: str, folder: Path) -> dict[str, Any]:
    """One run, what its syncs showed, and whether its updates come out the same again."""
    words = [*TASK, *ROWS[row], f"seed={seed}"]
    if python and SERVER[0] in words:
        words.append(f"policy.python={python}")
    name = f"{row.replace(', ', '-')}-{seed}"
    result = {"row": row, "seed": seed, **train_run(name, words, folder)}
    result["command"] = result["command"].replace(f"policy.python={python}", "").strip()
    steps = [r for r in read_jsonl(folder / name / "metrics.jsonl") if "loss" in r]
    result["step_s"] = median(step["step_time"] for step in steps)
    syncs = [s["sync/max_difference"] for s in steps if "sync/max_difference" in s]
    if syncs:
        result |= {"syncs": len(syncs), "sync_max_difference": max(syncs)}
        result["sync_s"] = median(step["sync/seconds"] for step in steps)
    if row == AHEAD:
        result["oldest"] = max(step["staleness/oldest"] for step in steps)
        result["replayed"] = replayed(folder / name)
    return result


def replayed(run: Path) -> dict[str, Any]:
    """The result of ``rl.replay`` for a run."""
    command = [sys.executable, "-m", "rl.replay", f"run={run}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_S, check=False)
    if said.returncode not in (0, 3):
        raise RuntimeError(said.stderr)
    found = json.loads(said.stdout)
    return {key: found[key] for key in ("steps", "equal", "max_difference")}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row of the table for each setting."""
    rows = []
    local = {run["seed"]: run for run in runs if run["row"] == "local"}
    for name in ROWS:
        if not (mine := [run for run in runs if run["row"] == name]):
            continue
        gains = [run["after"][0] - local[run["seed"]]["after"][0] for run in mine]
        last = [fmean(value for _, value in run["reward"][-LAST:]) for run in mine]
        rows.append(
            {
                "policy": name,
                "before": fmean(run["before"][0] for run in mine),
                "after": _mean_over_seeds([run["after"][0] for run in mine]),
                "against local": _mean_over_seeds(gains) if name != "local" else "",
                "reward at the end": _mean_over_seeds(last),
                "seconds a step": fmean(run["step_s"] for run in mine),
            }
        )
    return rows


def _mean_over_seeds(values: list[float]) -> str:
    """The mean with its interval over seeds; one seed has none."""
    return interval(values) if len(values) > 1 else f"{values[0]:.3f}, one seed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--python", default="", help="the interpreter that has vLLM")
    parser.add_argument("--folder", type=Path, help="where runs are kept, to go on with them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.folder or Path(temporary)
        runs = [
            one(row, seed, words.python, folder)
            for row in ROWS
            for seed in (words.seeds[:1] if row == AHEAD else words.seeds)
        ]
    rows = summary(runs)
    print(as_text(rows))
    words.out.write_text(json.dumps({**versions(), "rows": rows, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
