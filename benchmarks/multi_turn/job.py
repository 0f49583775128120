"""What a trainer gets, and what it hands in: the files of the benchmark's protocol."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

POINTS = "points.jsonl"


@dataclass(frozen=True)
class Job:
    """One training: a game, a model to start from, a seed and a budget.

    A trainer is a command that is started with the path of this job's JSON file as its last word.
    """

    game: str
    model: str
    """Folder of the model to start from, in the Hugging Face layout."""
    tasks: str
    """JSON lines: the training tasks."""
    play: str
    """``FILE:FUNCTION``, called as ``await play(task, base_url)``; it returns the reward."""
    seed: int
    tokens: int
    """Sampled tokens after which the training ends; 0 for no limit."""
    seconds: float
    """Seconds after which the training ends; 0 for no limit."""
    threads: int
    """Number of CPU threads."""
    out: str
    """Folder for everything that the trainer writes."""

    def write(self, path: Path) -> None:
        """Write the job's file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Job:
        """Read a job's file."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def hand_in(self, checkpoint: Path, step: int) -> None:
        """Hand in a copy of a checkpoint, as a point of the learning curve."""
        folder = Path(self.out) / "points" / f"{step:06d}"
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.pt"))
        with (Path(self.out) / POINTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"model": str(folder), "step": step}) + "\n")
            file.flush()
            os.fsync(file.fileno())
