"""Logic-RL's question (arXiv 2502.14768): does reinforcement on puzzles help in mathematics?

A model with a little skill in both is trained further on knights-and-knaves alone, by reinforcement
or, as the control, by imitating more episodes of the author. Then success on both is measured.
Reinforcement on math itself shows that the same number of updates and episodes can teach math.

Both environments share one tokenizer, one warm start and one layout, <think> and <answer>, so
thinking that is learned in one could help in the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run

OPTIONS = {
    "knights-knaves": ["people=3", "instructions=false"],
    "math": ["topic=arithmetic", "instructions=false", "reward=r1-zero"],
}
"""Of each environment. r1-zero pays for the layout that knights-and-knaves has; of two people the
test split has so few puzzles (46 different ones of 256) that success on them says little."""
BOTH = " + ".join(f"{name}({', '.join(words)})" for name, words in OPTIONS.items())
UPDATES, EPISODES = 12, 256
WARM = [
    *("env=mix", f"env.of={BOTH}", "tiny.batch_size=16", "tiny.steps=1200"),
    # No more is learned: this writes the made model down.
    *("steps=1", "batch_size=1", "demonstrations=1", "optimizer.lr=1e-9", "test_tasks=0"),
]
REINFORCE = [
    *(f"steps={UPDATES}", f"prompts={EPISODES // 8}", "group_size=8", f"save_every={UPDATES}"),
    *("eval.every=100", "eval.tasks=16", "eval.test_tasks=0", "optimizer.lr=4e-4", "resume=auto"),
]
IMITATE = [
    *(f"steps={UPDATES}", f"batch_size={EPISODES}", f"demonstrations={UPDATES * EPISODES}"),
    *("test_tasks=0", "optimizer.lr=4e-4", "optimizer.warmup_steps=5"),
]
EVALUATE = {"knights-knaves": "tasks=256", "math": "tasks=256"}


def chosen(name: str) -> list[str]:
    """The words that choose an environment."""
    return [f"env={name}", *(f"env.{word}" for word in OPTIONS[name])]


TRAININGS = {
    "reinforcement on knights-knaves": ("rl.train", [*chosen("knights-knaves"), *REINFORCE]),
    "imitation on knights-knaves": ("rl.sft", [*chosen("knights-knaves"), *IMITATE]),
    "reinforcement on math": ("rl.train", [*chosen("math"), *REINFORCE]),
}
RUNS = {
    "warm start": ["rl.sft", *WARM],
    **{training: [module, *words] for training, (module, words) in TRAININGS.items()},
    **{f"success on {name}": ["rl.eval", *chosen(name), EVALUATE[name]] for name in EVALUATE},
}


def models(folder: Path, seed: int) -> dict[str, Path]:
    """The models of a seed by their training, made now unless they are there."""
    warm = folder / f"warm-{seed}"
    finished_run("rl.sft", [*WARM, f"seed={seed}"], warm)
    start = warm / "checkpoints" / "last"
    made = {"none": start}
    for training, (module, words) in TRAININGS.items():
        out = folder / f"{training.replace(' ', '-')}-{seed}"
        finished_run(module, [*words, f"model={start}", f"seed={seed}"], out)
        last = f"step-{UPDATES:06d}" if module == "rl.train" else "last"
        made[training] = out / "checkpoints" / last
    return made


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Success on both environments after each training, and by how much it changed, by seed."""
    success: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in seeds:
        for training, model in models(folder, seed).items():
            for name, tasks in EVALUATE.items():
                out = folder / f"{training.replace(' ', '-')}-{seed}-{name}"
                words = [*chosen(name), tasks, f"model={model}", f"seed={seed}"]
                finished_run("rl.eval", words, out)
                result = json.loads((out / "result.json").read_text())
                success[training, name].append(result["success"])
    rows = []
    for training in ("none", *TRAININGS):
        row: dict[str, Any] = {f"training of {UPDATES} updates": training}
        for name in EVALUATE:
            after, before = success[training, name], success["none", name]
            changes = [a - b for a, b in zip(after, before, strict=True)]
            row |= {name: interval(after), f"change on {name}": interval(changes)}
        rows.append(row)
    return {"Success on test tasks": rows}
