"""How long a checkpoint stops a learner of several ranks, and the host's memory that it needs.

    python -m benchmarks.scaling.saving [--ranks 2] [--rounds 5]

Ranks share a model of about 100 million parameters, trained with AdamW. Each round saves a
resumable checkpoint: ``stopped`` is the time until the next update may begin, ``written`` the time
until the checkpoint is there. ``memory`` is the largest rise of the ranks' memory meanwhile, as a
multiple of the state's size: float32 weights and two averages, 12 bytes a parameter. Writes
``results/saving.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from agents.segment import Segment
from agents.torch_thread import TorchThread
from benchmarks.serving.weight_sync import make_model
from rl.credit.algorithms import ALGORITHMS
from rl.learner.ranks.learner import open_ranks
from rl.learner.seam import Experience, Host, LearnerSpec, TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.run.folder import versions
from rl.settings.lora import NO_LORA

RESULTS = Path(__file__).parents[1] / "results" / "saving.json"
LENGTH = 32
STATE_BYTES = 12


async def measure(folder: Path, ranks: int, rounds: int) -> dict[str, object]:
    """Save checkpoints of ``ranks`` processes."""
    model = make_model("100M")
    parameters = sum(p.numel() for p in model.parameters())
    model.save_pretrained(folder / "model")
    del model
    training = TrainingSpec(ALGORITHMS["grpo"], OptimizerConfig(lr=1e-5), 1.0, 64)
    spec = LearnerSpec(
        *(str(folder / "model"), None, "cpu", "float32", NO_LORA, 0), training=training
    )
    text = Segment(
        *(list(range(LENGTH)), [0] + [1] * (LENGTH - 1), [0.0] * LENGTH, [0] * LENGTH, [0] * LENGTH)
    )
    learner = await open_ranks(spec, Host(TorchThread(1), int), ranks, 600.0)
    found: dict[str, list[float]] = {"stopped_s": [], "written_s": [], "memory": []}
    try:
        await learner.update(Experience((), [text] * ranks), 1)
        for number in range(rounds):
            # Pages that the former round freed would be used again.
            before, watch = _memory(learner.processes.pids), _Peak(learner.processes.pids)
            watching = asyncio.create_task(watch.run())
            began = time.perf_counter()
            written = await learner.start_saving(folder / f"c{number % 2}")
            found["stopped_s"].append(time.perf_counter() - began)
            await written
            found["written_s"].append(time.perf_counter() - began)
            watching.cancel()
            found["memory"].append((watch.most - before) / (STATE_BYTES * parameters))
        size = sum(p.stat().st_size for p in (folder / "c0").rglob("*") if p.is_file())
    finally:
        await learner.close()
    return {
        "parameters": parameters,
        "bytes_written": size,
        **{f"median_{name}": median(values) for name, values in found.items()},
        **found,
    }


class _Peak:
    """The most memory that processes have while :meth:`run` runs."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.most = 0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self.most = max(self.most, await asyncio.to_thread(_memory, self._pids))
            await asyncio.sleep(0.01)


def _memory(pids: Sequence[int]) -> int:
    """The bytes that only these processes use."""
    lines = [
        line
        for pid in pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith(("Private_Clean", "Private_Dirty"))
    ]
    return sum(int(line.split()[1]) * 1024 for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        made = asyncio.run(measure(Path(folder), given.ranks, given.rounds))
    report = {"ranks": given.ranks, **made, "versions": versions()}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    for name in ("stopped_s", "written_s", "memory"):
        sys.stdout.write(f"{name}: median {made[f'median_{name}']:.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
