"""A run's folder: everything that happened, in files that any tool can read.

::

    config.json          the resolved configuration
    versions.json        python, packages, commit, device
    metrics.jsonl        one line per step, under TRL's names where TRL has one
    trajectories/        step-000012.jsonl: every episode, token for token
    checkpoints/         step-000020/ in the Hugging Face layout; best/ by validation
    curve.png            reward and validation over the run
"""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from rl.rollout.trajectory import TrajectoryGroup

PACKAGES = ("turnwise", "torch", "transformers", "tokenizers", "gymnasium", "numpy", "chz")


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; made when it does not exist.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` is false.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        if self.metrics_path.exists() and not resume:
            raise FileExistsError(
                f"{path} holds a run already: go on with resume=auto, or choose another out=..."
            )
        (path / "trajectories").mkdir(parents=True, exist_ok=True)
        self.checkpoints = path / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)

    def write_config(self, config: object, extra: Mapping[str, Any]) -> None:
        """Record the resolved configuration and the versions of everything that matters."""
        self._write_json("config.json", to_plain(config))
        self._write_json("versions.json", {**versions(), **extra})

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``: a resumed run does those steps again."""
        kept = [r for r in self.read_metrics() if r["step"] <= step]
        text = "".join(json.dumps(r) + "\n" for r in kept)
        self.metrics_path.write_text(text, encoding="utf-8")
        for path in (self.path / "trajectories").glob("step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl."""
        return read_jsonl(self.metrics_path) if self.metrics_path.exists() else []

    def write_trajectories(self, step: int, groups: Iterable[TrajectoryGroup]) -> None:
        """Write the episodes of a step, a line each."""
        lines = (json.dumps(t.to_json()) + "\n" for group in groups for t in group.trajectories)
        path = self.path / "trajectories" / f"step-{step:06d}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        text = json.dumps(record, indent=2, sort_keys=True, default=str)
        (self.path / name).write_text(text + "\n", encoding="utf-8")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON lines file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def to_plain(value: Any) -> Any:
    """Nested dataclasses as nested dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def versions() -> dict[str, Any]:
    """Python, packages and the commit of the code, as far as they can be known."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    found["packages"] = {name: installed[name] for name in PACKAGES if name in installed}
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    found["commit"] = git.stdout.strip() or None
    return found
