"""Compaction as a trained act (CompactionRL, arXiv 2607.05378).

Does an agent learn to write summaries that keep what it needs, where one context cannot hold all of
it? And does it without training on the summaries?

The environment is ``notes-v0`` (benchmarks/studies/worlds/notes.py). A context has room for one of
four notes, so that only summaries carry the codes to the question: without ``context.compact``
every episode ends at the second note. The warm start imitates summaries that often lose codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.tables import interval
from benchmarks.train_runs import finished_run
from rl.run.folder import read_jsonl

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_layers": 2, "num_heads": 2}
TINY |= {"vocab_size": 400, "context_length": 256, "demonstrations": 3000, "warmup_steps": 300}
TINY |= {"steps": 3500, "num_kv_heads": 2, "lr": 2e-3}
STEPS = 80
TRAIN = [
    *("env=notes", "env.max_turns=6", *(f"tiny.{key}={value}" for key, value in TINY.items())),
    *("context.compact=summary", "context.instruction=Summary ?", "context.tokens=86"),
    *("context.summary_tokens=14", "sampling.max_tokens=4", "threads=1"),
    *(f"steps={STEPS}", "prompts=16", "group_size=8", "optimizer.lr=1e-3", "resume=auto"),
    *("eval.every=20", "eval.tasks=200", "eval.test_tasks=400"),
]
ROWS = {"trained": [], "not trained": ["context.train_summaries=False"]}
RUNS = {"benchmarks.studies.worlds rl.train": TRAIN, "rows": ROWS}


def study(seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Success on test tasks before and after, and the curves on validation tasks."""
    ends, curves = [], []
    for row, words in ROWS.items():
        before, after, curve = [], [], []
        for seed in seeds:
            out = folder / f"{row.replace(' ', '-')}-{seed}"
            finished_run(
                "benchmarks.studies.worlds rl.train", [*TRAIN, *words, f"seed={seed}"], out
            )
            result = json.loads((out / "result.json").read_text())
            before.append(result["before"]["success"])
            after.append(result["after"]["success"])
            records = [r for r in read_jsonl(out / "metrics.jsonl") if "eval/success" in r]
            curve.append({r["step"]: r["eval/success"] for r in records})
        changes = [b - a for a, b in zip(before, after, strict=True)]
        named = {"before": before, "after": after, "change": changes}
        ends.append({"summaries": row} | {name: interval(x) for name, x in named.items()})
        at = sorted(set(curve[0]).intersection(*curve))
        curves.append(
            {"summaries": row}
            | {f"step {step}": sum(c[step] for c in curve) / len(curve) for step in at}
        )
    return {"Success on test tasks": ends, "Success on validation tasks": curves}
