"""Logic-RL's question (arXiv 2502.14768): does reinforcement on puzzles help in mathematics?

A model that knows both a little is trained further on knights-and-knaves alone, by reinforcement
or by imitating more of the author, with as many updates and episodes; success on either is then
measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run

KNIGHTS = ["people=2", "instructions=false"]
MATH = ["topic=arithmetic", "instructions=false"]
BOTH = f"env.of=knights-knaves({', '.join(KNIGHTS)}) + math({', '.join(MATH)})"
UPDATES, EPISODES = 20, 64
ON_KNIGHTS = ["env=knights-knaves", *(f"env.{word}" for word in KNIGHTS)]
WARM = [
    *("env=mix", BOTH, "tiny.batch_size=16", "tiny.steps=600", "tiny.demonstrations=6000"),
    *("steps=10", "batch_size=16", "test_tasks=0"),
]
REINFORCE = [
    *(*ON_KNIGHTS, f"steps={UPDATES}", f"prompts={EPISODES // 8}", f"save_every={UPDATES}"),
    *("eval.every=100", "eval.tasks=16", "eval.test_tasks=0", "resume=auto"),
]
IMITATE = [
    *(*ON_KNIGHTS, f"steps={UPDATES}", f"batch_size={EPISODES}", "test_tasks=0"),
    *("demonstrations=1280", "optimizer.lr=4e-4", "optimizer.warmup_steps=5"),
]
EVALUATE = {
    "knights-knaves": [*ON_KNIGHTS, "tasks=256"],
    "math": ["env=math", *(f"env.{word}" for word in MATH), "tasks=512"],
}
RUNS = {
    **{"warm start, rl.sft": WARM, "rl.train": REINFORCE, "rl.sft": IMITATE},
    **{f"rl.eval on {name}": words for name, words in EVALUATE.items()},
}


def models(folder: Path, seed: int) -> dict[str, Path]:
    """The models of a seed, made now unless they are there."""
    warm, rl, sft = (folder / f"{name}-{seed}" for name in ("warm", "rl", "sft"))
    finished_run("rl.sft", [*WARM, f"seed={seed}"], warm)
    start = f"model={warm}/checkpoints/last"
    finished_run("rl.train", [*REINFORCE, start, "optimizer.lr=4e-4", f"seed={seed}"], rl)
    finished_run("rl.sft", [*IMITATE, start, f"seed={seed}"], sft)
    return {
        "neither": warm / "checkpoints" / "last",
        "reinforcement": rl / "checkpoints" / f"step-{UPDATES:06d}",
        "imitation": sft / "checkpoints" / "last",
    }


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Success on both environments after each training, and by how much it changed, by seed."""
    success: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in seeds:
        for training, model in models(folder, seed).items():
            for name, words in EVALUATE.items():
                out = folder / f"{training}-{name}-{seed}"
                finished_run("rl.eval", [*words, f"model={model}", f"seed={seed}"], out)
                result = json.loads((out / "result.json").read_text())
                success[training, name].append(result["success"])
    rows = []
    for training in dict.fromkeys(training for training, _ in success):
        row: dict[str, Any] = {f"{UPDATES} updates on knights-knaves": training}
        for name in EVALUATE:
            after, before = success[training, name], success["neither", name]
            changes = [a - b for a, b in zip(after, before, strict=True)]
            row |= {name: interval(after), f"change on {name}": interval(changes)}
        rows.append(row)
    return {"Success on test tasks": rows}
