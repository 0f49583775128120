"""The main job from a cold start, compared with supervised learning for the same time.

    python -m benchmarks.learning.main_job [--seeds 0 1 2] [--out FOLDER] [--set key=value ...]
                                           [--smoke]

For each seed, ``python -m rl.train env=code-sandbox`` runs in its own process with an empty cache,
so that its time includes making and warm-starting the tiny model. Then ``python -m rl.sft`` trains
the same warm start on the same demonstrations for as long as the RL run trained. The same test
tasks, on which no choice depends, measure both. Writes FOLDER/main_job.json and
FOLDER/learning-curve.png, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from rl.run.folder import read_jsonl, versions

SMOKE = ["preset=smoke"]


def run(module: str, words: list[str], cache: Path) -> tuple[str, float]:
    """A command in a process of its own; returns its standard output and its seconds."""
    environment = {**os.environ, "TURNWISE_CACHE": str(cache)}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3600,
    )
    return done.stdout, time.monotonic() - started


def one_seed(seed: int, folder: Path, extra: list[str], smoke: bool) -> dict[str, float]:
    """RL from a cold start, then the supervised control from the same warm start."""
    cache = Path(tempfile.mkdtemp(prefix="turnwise-cold-"))
    out = folder / f"rl-{seed}"
    words = ["env=code-sandbox", f"seed={seed}", f"out={out}", *extra, *(SMOKE if smoke else [])]
    _, seconds = run("rl.train", words, cache)
    records = read_jsonl(out / "metrics.jsonl")
    tests = [r for r in records if "test/success" in r]
    steps = [r for r in records if "step_time" in r]
    trained = sum(r["step_time"] for r in steps)
    warm_start = next((cache / "tiny").iterdir())
    control = folder / f"sft-{seed}"
    words = [
        "env=code-sandbox",
        f"model={warm_start}",
        f"seed={seed}",
        f"out={control}",
        f"max_seconds={trained:.1f}",
        "steps=1000000",
        f"test_tasks={tests[0]['test/tasks']}",
        *[word for word in extra if word.startswith("env.")],
    ]
    text, _ = run("rl.sft", words, cache)
    supervised = json.loads(text)
    return {
        "seed": seed,
        "cold_start_seconds": seconds,
        "training_seconds": trained,
        "before": tests[0]["test/success"],
        "after": tests[-1]["test/success"],
        "supervised": supervised["after"],
        "supervised_steps": supervised["steps"],
        "test_tasks": tests[0]["test/tasks"],
    }


def mean_interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95% interval over seeds (Student's t)."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def draw(folder: Path, seeds: list[int], rows: list[dict[str, float]]) -> None:
    """Validation over steps for every seed, with test tasks before and after."""
    figure = Figure(figsize=(7.6, 4.2), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for seed in seeds:
        records = read_jsonl(folder / f"rl-{seed}" / "metrics.jsonl")
        checks = [r for r in records if "eval/success" in r]
        axes.plot(
            [r["step"] for r in checks],
            [r["eval/success"] for r in checks],
            marker="o",
            markersize=3,
            linewidth=1.6,
            label=f"reinforcement learning, seed {seed}",
        )
    control = fmean(row["supervised"] for row in rows)
    axes.axhline(
        control, color="#888888", linestyle="--", label="supervised, equal seconds (test tasks)"
    )
    axes.set_ylim(0, 1)
    axes.set_xlabel("learner updates (32 tasks x 8 programs each)")
    axes.set_ylabel("held-out programs that pass every hidden test")
    axes.set_title("python -m rl.train env=code-sandbox, from a cold start", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(folder / "learning-curve.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/main-job"))
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    parser.add_argument("--smoke", action="store_true", help="one pass over everything, quickly")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in options.seeds:
        rows.append(one_seed(seed, options.out, options.set, options.smoke))
        print(json.dumps(rows[-1]))
    gains = [row["after"] - row["supervised"] for row in rows]
    result = {
        "rows": rows,
        "before": mean_interval([row["before"] for row in rows]),
        "after": mean_interval([row["after"] for row in rows]),
        "supervised": mean_interval([row["supervised"] for row in rows]),
        "gain_over_supervised": mean_interval(gains),
        "cold_start_seconds_max": max(row["cold_start_seconds"] for row in rows),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        **versions(),
    }
    (options.out / "main_job.json").write_text(json.dumps(result, indent=2) + "\n")
    draw(options.out, options.seeds, rows)
    for name in ("before", "after", "supervised", "gain_over_supervised"):
        mean, low, high = result[name]
        print(f"{name:<22}{mean:7.3f}  [{low:.3f}, {high:.3f}]")
    print(f"cold start, slowest   {result['cold_start_seconds_max']:7.0f} s")


if __name__ == "__main__":
    main()
