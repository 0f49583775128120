"""A run's folder: its results in files that any tool can read.

::

    config.json          the resolved configuration
    versions.json        python, packages, commit, device
    metrics.jsonl        one line per step, under TRL's names if TRL has one
    trajectories/        step-000012.jsonl.gz: every episode; step-000012.npz: all tokens;
                         step-000012.learner.npz: the learner's numbers of these tokens;
                         step-000012.calls.npz: duration, retries and status of tool calls;
                         validation-000010, test-before, test-after: episodes of evaluations
    checkpoints/         step-000020/ in the Hugging Face layout; best/ by validation
    changes.jsonl        history of the settings that changed when the run was resumed
    result.json          success before and after, and the steps without a gradient
    curve.png            reward and validation over the run
    ledger.png           the seconds of each step by activity
    status.json          the current status, for ``rl.status``
    stalled.txt          waits and stacks at times without progress
    .lock                held by the process of the run
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl.errors import RunFailure, UsageError
from rl.files import make_folder, replace_text, writing
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.trajectory_files import (
    LINES,
    finish_write,
    learner_path,
    remove_trajectories,
    write_learner_columns,
    write_trajectories,
)
from rl.run.metrics.intervals import PassRate
from rl.settings.parsing.command_line import resolve
from rl.settings.parsing.files import flatten, read_run
from rl.settings.parsing.plain import to_plain
from rl.settings.train import TrainConfig

if TYPE_CHECKING:
    from rl.run.backup import Backup

logger = logging.getLogger(__name__)
MAY_CHANGE = (
    "steps",
    "eval.",
    "save_every",
    "keep_episodes",
    "record_tokens",
    "max_seconds",
    "episode_timeout_s",
    "stall_s",
    "close_s",
    "resume",
    "out",
    "backup",
    "device",
    "threads",
    "learner",
    "log.",
    "callbacks",
    "dry_run",
    "packing",
    "memory.",
    "plan.",
)
"""Keys, or prefixes of keys, of settings that a resumed run is allowed to change. A change of these
settings alters an update by rounding at most."""
_NOT_REPORTED = ("resume", "out", "dry_run", "learner")
"""The key ``learner`` itself is from earlier versions: now ``learner.name`` has its value."""
_TASKS = "env.options.tasks"
_EPISODES = re.compile(
    r"\.?(?:step|validation|test)-(\d+|before|after)"
    r"\.(?:jsonl\.gz|(?:(?:learner|calls)\.)?npz)(\.tmp)?"
)
"""Names of episode files, including incomplete files that a killed run left behind."""
LOCK = ".lock"
When = Literal["before", "after"]
"""When test tasks are played: before the first step, or after the last."""
PACKAGES = ("turnwise", "torch", "transformers", "tokenizers", "peft", "gymnasium", "numpy", "chz")


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; created if it does not exist.
        config: the run's settings.

    Raises:
        UsageError: the folder or its backup holds a run and ``config.resume`` is "no", the run has
            other settings, the folder cannot be created, or the backup cannot be used.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self._config = config
        self.metrics_path = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        """Logs of servers that the run starts."""
        self.changes: list[str] = []
        """Settings that changed when the run was resumed, such as ``steps=80 (before: 60)``."""
        self.backup = _brought(config, path)
        """The copy of the folder elsewhere, or None."""
        self.was_begun = self.metrics_path.exists() or any(self.checkpoints.glob("step-*"))
        """Whether the folder held a run before."""
        if self.was_begun:
            if config.resume == "no":
                raise UsageError(
                    f"{path} holds a run already: continue with resume={path}, or choose another "
                    f"out=..."
                )
            self._check_same_run(config)
        for folder in (path, self.trajectories, self.checkpoints):
            make_folder(folder)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other processes while the context lasts.

        The lock ends with the process, even if the process is killed. Child processes do not
        inherit it.

        Raises:
            UsageError: another process holds the lock.
        """
        path = self.path / LOCK
        with writing(path):
            file = path.open("a")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise UsageError(
                    f"{self.path} is used by another run (python -m rl.status {self.path}): "
                    "stop it first, or choose another out=..."
                ) from error
            except OSError as error:
                logger.warning(
                    "%s cannot be locked, so a second run there would not be refused: %s",
                    self.path,
                    error,
                )
            yield

    def write_config(self, config: TrainConfig, extra: Mapping[str, Any]) -> None:
        """Write the resolved configuration, and the versions of Python, packages and code."""
        self._write_json("config.json", to_plain(config))
        facts = {**versions(), **extra, "files": _checksums(config)}
        self._write_json("versions.json", facts)

    def changed_files(self) -> list[str]:
        """Files of the environment's settings whose content is not that of the run's start."""
        path = self.path / "versions.json"
        if not path.is_file():
            return []
        recorded = json.loads(path.read_text(encoding="utf-8")).get("files", {})
        now = _checksums(self._config)
        return [file for file, checksum in recorded.items() if now.get(file) != checksum]

    def record_changes(self, step: int) -> None:
        """Write changed settings, if a resumed run has any, to config.json and changes.jsonl.

        Args:
            step: the last step with the former settings.
        """
        if not self.changes:
            return
        path = self.path / "changes.jsonl"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "changes": self.changes}) + "\n")
        recorded = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        kept = {key: recorded[key] for key in _NOT_REPORTED if key in recorded}
        self._write_json("config.json", to_plain(self._config) | kept)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the run's result."""
        self._write_json("result.json", result)

    def finished(self) -> dict[str, Any] | None:
        """The content of result.json if the run finished and no later step was recorded."""
        try:
            result = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
            done = bool(result["finished"]) and result["steps"] >= self.read_metrics()[-1]["step"]
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            return None
        return result if done else None

    def _check_same_run(self, config: TrainConfig) -> None:
        """Check that only settings in :data:`MAY_CHANGE` differ from those of the folder's run.

        If an earlier version of turnwise started the run, settings that did not exist then have the
        values with which the run behaves as before.

        Raises:
            UsageError: another setting differs. The message names the first such setting.
        """
        path = self.path / "config.json"
        if not path.exists():
            return
        try:
            old = flatten(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise UsageError(
                f"{path} is no configuration of a run ({error}): choose another out=..."
            ) from error
        new = _flat(config)
        if new.keys() - old.keys():
            old = self._with_newer_keys() | old
        for key in sorted(old.keys() | new.keys()):
            before, now = old.get(key), new.get(key)
            if before == now or (key == _TASKS and _is_same_path(before, now)):
                continue
            if key.startswith(MAY_CHANGE):
                if key not in _NOT_REPORTED:
                    self.changes.append(f"{key}={now} (before: {before})")
            else:
                raise UsageError(
                    f"{self.path} was started with {key}={before}, not {now}: "
                    f"continue with the same settings, or choose another out=..."
                )

    def _with_newer_keys(self) -> dict[str, Any]:
        """The run's settings, with values for keys that did not exist when the run started."""
        recorded = read_run(str(self.path), "resume")
        return _flat(resolve(TrainConfig, {f"the run {self.path}": recorded}))

    def rewind(self, step: int) -> None:
        """Remove the metrics and episodes of steps after ``step``, which a resumed run repeats.

        With ``step=-1``, all metrics and episodes are removed.
        """
        if self.metrics_path.exists():
            kept = [r for r in self.read_metrics() if r["step"] <= step]
            replace_text(self.metrics_path, "".join(json.dumps(r) + "\n" for r in kept))
        # A run that was tested after this step is not tested there again.
        tested = self.last_test(step) is not None
        steps = {"before": 0, "after": step if tested else step + 1}
        for path in self.trajectories.glob(f"*{LINES}"):
            finish_write(path)
        for path in self.trajectories.iterdir():
            played = _EPISODES.fullmatch(path.name)
            if played is None:
                continue
            at = steps[played[1]] if played[1] in steps else int(played[1])
            if at > step or played[2]:
                path.unlink()

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, without an incomplete last line.

        Raises:
            RunFailure: a line before the last line is no record.
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
        """Success on test tasks as measured after ``step``, or None if it was not measured."""
        for record in self.read_metrics():
            if record["step"] == step and "test/success" in record:
                keys = ("test/success", "test/success_low", "test/success_high", "test/tasks")
                return PassRate(*(record[key] for key in keys))
        return None

    def write_trajectories(
        self, step: int, groups: Iterable[TrajectoryGroup], keep: int = 0
    ) -> Path:
        """Write the episodes of a step, and return the path of the JSON lines file.

        Args:
            step: the step.
            groups: the step's episodes.
            keep: number of newest steps whose episodes stay, including this one; 0 keeps all.
        """
        path = self._episodes(step)
        with writing(path):
            write_trajectories(path, groups)
            if keep:
                remove_trajectories(self._episodes(step - keep))
        return path

    def write_learner_columns(
        self,
        step: int,
        groups: Sequence[TrajectoryGroup],
        columns: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Write what the learner computed about the tokens of a step's episodes."""
        path = self._episodes(step)
        with writing(learner_path(path)):
            write_learner_columns(path, groups, columns)

    def write_validation(self, step: int, groups: Iterable[TrajectoryGroup], keep: int = 0) -> None:
        """Write the episodes of the validation after a step.

        Args:
            step: the step.
            groups: the episodes.
            keep: number of newest validations whose episodes stay; 0 keeps all.
        """
        path = self.trajectories / f"validation-{step:06d}{LINES}"
        with writing(path):
            write_trajectories(path, groups)
            if keep:
                for old in sorted(self.trajectories.glob(f"validation-*{LINES}"))[:-keep]:
                    remove_trajectories(old)

    def write_test(self, when: When, groups: Iterable[TrajectoryGroup]) -> None:
        """Write the episodes of the test before or after training."""
        path = self.trajectories / f"test-{when}{LINES}"
        with writing(path):
            write_trajectories(path, groups)

    def _episodes(self, step: int) -> Path:
        return self.trajectories / f"step-{step:06d}{LINES}"

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        text = json.dumps(record, indent=2, sort_keys=True, default=str)
        replace_text(self.path / name, text + "\n")


def _checksums(config: TrainConfig) -> dict[str, str]:
    """The SHA-256 of each file that an option of the environment names, by its path."""
    values = to_plain(config.env.options).values()
    paths = [Path(value) for value in values if isinstance(value, str) and value]
    found = {}
    for path in paths:
        with suppress(OSError):  # An option may be a text of any length.
            if path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _flat(config: TrainConfig) -> dict[str, Any]:
    """The settings as config.json records them, by dotted keys."""
    return flatten(json.loads(json.dumps(to_plain(config), default=str)))


def _is_same_path(before: Any, now: Any) -> bool:
    """Whether a recorded path, relative in runs of earlier versions, equals ``now``."""
    return str(Path(str(before)).expanduser().absolute()) == str(now)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON lines file."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def versions() -> dict[str, Any]:
    """Versions of Python, the packages and the machine, and the commit of the code if known."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    found["packages"] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found["packages"][name] = metadata.version(name)
    found["commit"] = _commit(Path(__file__).resolve().parents[2])
    return found


def _commit(home: Path) -> str | None:
    """The commit checked out in ``home``, or None if ``home`` is no checkout or git is absent.

    A checkout that contains ``home`` does not count, because packages may be installed inside
    another project.
    """
    git = shutil.which("git")
    if git is None or not (home / ".git").exists():
        return None
    done = subprocess.run(
        [git, "rev-parse", "HEAD"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return done.stdout.strip() or None


def _brought(config: TrainConfig, folder: Path) -> Backup | None:
    """The backup of a run's folder, which is fetched if it has a checkpoint and the folder none."""
    if not config.backup:
        return None
    from rl.run.backup import Backup  # loads torch

    backup = Backup(config.backup, folder)
    backup.bring(resume=config.resume != "no")
    return backup
