"""How many weights of a model change in a step, and what it saves to send only those.

    python -m benchmarks.scaling.deltas MODEL [--steps 6] [--lr 1e-6]

The model learns the pages of ``docs/`` in bfloat16, with float32 copies as in every run, at a
learning rate that is usual in reinforcement learning. After each step, ``changed`` is the share of
words of 16 bits of the file that differ, ``sent`` the share of its bytes that a machine gets with
``cluster.deltas=true``, and ``made_s`` and ``applied_s`` the seconds to make the delta and to apply
it. Writes ``results/deltas.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from transformers import AutoTokenizer

from agents.segment import Segment
from agents.serving import WeightFolders
from agents.torch_thread import TorchThread
from rl.cluster.deltas import applied, delta_of
from rl.credit.algorithms import ALGORITHMS
from rl.learner.local import open_local
from rl.learner.seam import Experience, Host, LearnerSpec, TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.run.folder import versions
from rl.settings.lora import NO_LORA

HOME = Path(__file__).parents[2]
RESULTS = HOME / "benchmarks" / "results" / "deltas.json"
LENGTH, ROWS = 128, 8


def texts(model: str) -> list[Segment]:
    """Rows of tokens from the pages of the documentation."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    words = " ".join(page.read_text("utf-8") for page in sorted((HOME / "docs").glob("*.md")))
    ids = tokenizer(words[:400_000])["input_ids"]
    zeros = [0] * LENGTH
    return [
        Segment(ids[i : i + LENGTH], [0] + [1] * (LENGTH - 1), [0.0] * LENGTH, zeros, zeros)
        for i in range(0, len(ids) - LENGTH, LENGTH)
    ]


async def measure(model: str, steps: int, lr: float) -> dict[str, list[float]]:
    """Make steps, and compare the weights before and after each."""
    training = TrainingSpec(ALGORITHMS["grpo"], OptimizerConfig(lr=lr), 1.0, 1024)
    spec = LearnerSpec(*(model, None, "cpu", "bfloat16", NO_LORA, 0), training=training)
    learner = await open_local(spec, Host(TorchThread(torch.get_num_threads()), int))
    rows = texts(model)
    found: dict[str, list[float]] = {"changed": [], "sent": [], "made_s": [], "applied_s": []}
    publisher = WeightFolders()

    async def published(version: int) -> bytes:
        weights = await (await learner.weights(version)).tensors()
        (file,) = Path(str(publisher.write(weights, version))).iterdir()
        return file.read_bytes()

    old = await published(0)
    for step in range(1, steps + 1):
        await learner.update(Experience((), rows[step * ROWS : (step + 1) * ROWS]), step)
        new = await published(step)
        began = time.perf_counter()
        delta = delta_of(old, new)
        found["made_s"].append(time.perf_counter() - began)
        assert delta is not None, "half of the weights changed"
        began = time.perf_counter()
        assert applied(old, delta) == new
        found["applied_s"].append(time.perf_counter() - began)
        found["changed"].append(2 * len(delta.words) / len(new))
        found["sent"].append((delta.words.nbytes + delta.gaps.nbytes) / len(new))
        old = new
    publisher.close()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-6)
    given = parser.parse_args(argv)
    found = asyncio.run(measure(given.model, given.steps, given.lr))
    medians = {f"median_{name}": median(values) for name, values in found.items()}
    report = {"model": Path(given.model).name, "lr": given.lr, **medians, **found}
    RESULTS.write_text(json.dumps({**report, "versions": versions()}, indent=2) + "\n")
    for name, value in medians.items():
        sys.stdout.write(f"{name}: {value:.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
