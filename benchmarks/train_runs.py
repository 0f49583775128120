"""Commands of benchmarks, each run in its own process, and the figures kept of a training run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.run.folder import read_jsonl

LIMIT_S = 3600.0


def finished_run(module: str, words: Sequence[str], out: Path) -> float:
    """``python -m MODULE WORDS out=OUT``; a run whose folder is complete is not made again.

    Args:
        module: ``rl.train`` or another command that takes ``out=``; words of its own may follow.
        words: the ``key=value`` of the command line.
        out: the run's folder; its log stands beside it.

    Returns:
        The seconds that it took.

    Raises:
        subprocess.CalledProcessError: the run failed; its log says why.
    """
    summary = out / "seconds.json"
    if not summary.exists():
        started = time.monotonic()
        out.parent.mkdir(parents=True, exist_ok=True)
        with (out.parent / f"{out.name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", *module.split(), *words, f"out={out}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=LIMIT_S,
            )
        summary.write_text(json.dumps(time.monotonic() - started))
    return float(json.loads(summary.read_text()))


def train_run(name: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """``python -m rl.train`` with these words; a run whose folder is complete is not made again.

    Args:
        name: of the run's folder and log within ``folder``.
        words: the ``key=value`` of the command line.
        folder: where runs are kept.

    Returns:
        Its command, its seconds, test success with its interval before and after, and curves of
        validation success and of reward, as [step, value].

    Raises:
        subprocess.CalledProcessError: the run failed; its log says why.
    """
    out = folder / name
    seconds = finished_run("rl.train", words, out)
    records = read_jsonl(out / "metrics.jsonl")
    tests = [r for r in records if "test/success" in r]
    interval = ("test/success", "test/success_low", "test/success_high")
    return {
        "command": " ".join(["python -m rl.train", *words]),
        "seconds": seconds,
        "before": [tests[0][key] for key in interval],
        "after": [tests[-1][key] for key in interval],
        "test_tasks": tests[-1]["test/tasks"],
        "validation": [[r["step"], r["eval/success"]] for r in records if "eval/success" in r],
        "reward": [[r["step"], r["reward"]] for r in records if "reward" in r],
    }
