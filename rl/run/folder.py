"""A run's folder: everything that happened, in files that any tool can read.

::

    config.json          the resolved configuration
    versions.json        python, packages, commit, device
    metrics.jsonl        one line per step, under TRL's names where TRL has one
    trajectories/        step-000012.jsonl.gz: every episode, token for token
    checkpoints/         step-000020/ in the Hugging Face layout; best/ by validation
    result.json          success before and after, and the steps without a gradient
    curve.png            reward and validation over the run
    ledger.png           where the seconds of each step went
    status.json          what it does at this moment, for ``rl.status``
    stalled.txt          where everything stood when nothing got further
    .lock                held by the process that runs here
"""

from __future__ import annotations

import fcntl
import gzip
import json
import logging
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rl.config import TrainConfig
from rl.errors import RunFailure, UsageError
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.run.files import make_folder, replace_text, writing
from rl.run.metrics import PassRate
from rl.run.plain import to_plain
from rl.settings.files import flatten

logger = logging.getLogger(__name__)
MAY_CHANGE = (
    "steps",
    "eval.",
    "save_every",
    "keep_episodes",
    "max_seconds",
    "episode_timeout_s",
    "stall_s",
    "close_s",
    "resume",
    "out",
    "device",
    "threads",
    "learner",
    "log.",
    "callbacks",
    "dry_run",
)
"""Settings (prefixes of keys) in which a resumed run may differ from the one it goes on from."""
_NOT_TOLD = ("resume", "out", "dry_run")
LOCK = ".lock"
PACKAGES = ("turnwise", "torch", "transformers", "tokenizers", "peft", "gymnasium", "numpy", "chz")


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; made when it does not exist.
        config: of the run; a folder that holds another run's is refused.

    Raises:
        UsageError: the folder holds a run and the configuration does not say to resume it, or it
            was started with other settings, or the folder cannot be made.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        """Of servers that the run starts."""
        self.changes: list[str] = []
        """What a resumed run does otherwise than before, a line each: ``steps=80 (before: 60)``."""
        if self.metrics_path.exists() or any(self.checkpoints.glob("step-*")):
            if config.resume == "no":
                raise UsageError(
                    f"{path} holds a run already: go on with resume={path}, or choose another "
                    f"out=..."
                )
            self._check_same_run(config)
        for folder in (path, path / "trajectories", self.checkpoints):
            make_folder(folder)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the context lasts no other process may run in this folder.

        A lock of the process: it is gone with it, however it ends, and no child has it.

        Raises:
            UsageError: one does.
        """
        path = self.path / LOCK
        with writing(path):
            file = path.open("a")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise UsageError(
                    f"{self.path} is used by a run that goes on (python -m rl.status {self.path}): "
                    "stop it first, or choose another out=..."
                ) from error
            except OSError as error:
                logger.warning("two runs in %s would not be noticed: %s", self.path, error)
            yield

    def write_config(self, config: TrainConfig, extra: Mapping[str, Any]) -> None:
        """Record the resolved configuration and the versions of everything that matters."""
        self._write_json("config.json", to_plain(config))
        self._write_json("versions.json", {**versions(), **extra})

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Record what the run came to."""
        self._write_json("result.json", result)

    def _check_same_run(self, config: TrainConfig) -> None:
        """Refuse to go on with another configuration than the folder's run was started with.

        Raises:
            UsageError: names what differs. How long, where and how often may differ.
        """
        path = self.path / "config.json"
        if not path.exists():
            return
        try:
            old = flatten(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise UsageError(
                f"{path} is not what a run wrote ({error}): choose another out=..."
            ) from error
        new = flatten(json.loads(json.dumps(to_plain(config), default=str)))
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) == new.get(key):
                continue
            if key.startswith(MAY_CHANGE):
                if key not in _NOT_TOLD:
                    self.changes.append(f"{key}={new.get(key)} (before: {old.get(key)})")
            else:
                raise UsageError(
                    f"{self.path} was started with {key}={old.get(key)}, not {new.get(key)}: "
                    f"go on with the same settings, or choose another out=..."
                )

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``: a resumed run does those steps again.

        Before step 0 there is nothing: -1 forgets all.
        """
        if self.metrics_path.exists():
            kept = [r for r in self.read_metrics() if r["step"] <= step]
            replace_text(self.metrics_path, "".join(json.dumps(r) + "\n" for r in kept))
        for path in (self.path / "trajectories").iterdir():
            played = re.fullmatch(r"step-(\d+)\.jsonl\.gz", path.name)
            if played is not None and int(played[1]) > step:
                path.unlink()

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl; without the end of a last one that was cut short.

        Raises:
            RunFailure: another line is not one of a run.
        """
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text(encoding="utf-8", errors="replace").split("\n")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    where = f"{self.metrics_path}, line {number}"
                    raise RunFailure(f"{where} is no record of a run ({error})") from error
        return records

    def last_test(self, step: int) -> PassRate | None:
        """Success on test tasks as it was measured after training ended with ``step``."""
        for record in self.read_metrics():
            if record["step"] == step and "test/success" in record:
                keys = ("test/success", "test/success_low", "test/success_high", "test/tasks")
                return PassRate(*(record[key] for key in keys))
        return None

    def write_trajectories(
        self, step: int, groups: Iterable[TrajectoryGroup], keep: int = 0
    ) -> Path:
        """Write the episodes of a step, a line each, and return where.

        Args:
            step: the step.
            groups: its episodes.
            keep: of how many steps episodes stay, this one's among them; 0: of all.
        """
        path = self._episodes(step)
        with writing(path):
            write_trajectories(path, groups)
            if keep:
                self._episodes(step - keep).unlink(missing_ok=True)
        return path

    def _episodes(self, step: int) -> Path:
        return self.path / "trajectories" / f"step-{step:06d}.jsonl.gz"

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        text = json.dumps(record, indent=2, sort_keys=True, default=str)
        replace_text(self.path / name, text + "\n")


def write_trajectories(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Write episodes as compressed JSON lines; equal episodes make equal files."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as file:
        for group in groups:
            for trajectory in group.trajectories:
                file.write(json.dumps(trajectory.to_json()).encode() + b"\n")


def read_trajectories(path: Path) -> list[Trajectory]:
    """The episodes that :func:`write_trajectories` wrote, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Trajectory.from_json(json.loads(line)) for line in file]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON lines file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def versions() -> dict[str, Any]:
    """Python, packages and the commit of the code, as far as they can be known."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    found["packages"] = {name: installed[name] for name in PACKAGES if name in installed}
    found["commit"] = _commit(Path(__file__).resolve().parents[2])
    return found


def _commit(home: Path) -> str | None:
    """The commit that is checked out in ``home``; None where it is no checkout, or git is absent.

    Packages installed inside somebody else's checkout do not bear its commit.
    """
    git = shutil.which("git")
    if git is None or not (home / ".git").exists():
        return None
    answer = subprocess.run(
        [git, "rev-parse", "HEAD"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return answer.stdout.strip() or None
