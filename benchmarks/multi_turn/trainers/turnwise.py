"""turnwise: GRPO with the default settings of ``rl.train``, on the benchmark's episodes.

Run with: python -m benchmarks.multi_turn --trainer turnwise
"""

from __future__ import annotations

import sys
from pathlib import Path

import rl
from benchmarks.multi_turn.games import MAX_TOKENS, MAX_TURNS, TEMPERATURE
from benchmarks.multi_turn.job import Job

STEPS = 1_000_000
"""More steps than any budget allows: the harness interrupts the run."""


class HandIn(rl.Callback):
    """Hands in the checkpoint of every step."""

    def __init__(self, job: Job, every: int) -> None:
        self._job, self._every = job, every

    def on_step(self, step, metrics, groups) -> None:
        """Copy the step's checkpoint."""
        if step % self._every == 0:
            self._job.hand_in(
                Path(self._job.out) / "run" / "checkpoints" / f"step-{step:06d}", step
            )


def train(job: Job, every: int = 2, lr: float = 4e-4) -> None:
    config = rl.TrainConfig(
        env={"name": "agent", "loop": job.play, "tasks": job.tasks, "max_turns": MAX_TURNS},
        model=job.model,
        seed=job.seed,
        threads=job.threads,
        steps=STEPS,
        prompts=8,
        group_size=8,
        optimizer={"lr": lr},
        sampling={"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE},
        context_length=256,
        eval={"tasks": 0, "test_tasks": 0},
        save_every=every,
        keep_episodes=1,
        out=str(Path(job.out) / "run"),
    )
    rl.fit(config, callbacks=[HandIn(job, every)])


if __name__ == "__main__":
    train(Job.read(sys.argv[-1]))
