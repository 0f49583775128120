"""Episodes of an evaluation in its folder, so that an interrupted evaluation continues.

While episodes are played, each one becomes a line of ``played.jsonl``. At the end, all are written
to ``trajectories.jsonl.gz``, and ``played.jsonl`` is removed. ``evaluation.json`` has the settings
on which the episodes depend.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl.errors import UsageError
from rl.files import replace_text, writing
from rl.rollout.token_table import add_calls, to_calls
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.rollout.trajectory_files import read_trajectories, write_trajectories
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain, without_secrets
from rl.settings.run import run_path

EPISODES, PLAYED, RECORD = "trajectories.jsonl.gz", "played.jsonl", "evaluation.json"
RESULT, PICTURE, SUITE = "result.json", "evaluation.png", "suite.json"
"""Names of the files in an evaluation's folder."""
_WITHOUT_EFFECT = {
    *("out", "json", "k", "compare", "reward_model", "suite", "tasks", "episodes", "callbacks"),
    *("device", "threads", "dry_run", "episode_timeout_s", "close_s", "allow_unsafe"),
    *("sampling.slots", "policy.timeout_s", "policy.deadline_s", "policy.concurrent"),
    *("policy.key_env", "policy.cache_gb", "log", "cluster"),
}
"""Settings on which no single episode depends. All settings ``log.KEY`` and ``cluster.KEY`` belong
to them as well."""
_WEIGHTS = (".safetensors", ".bin", ".json")

_WORDS = re.compile(r"[\s,;:=]+")
"""What separates the names of files in a setting, as in path/to/file.py:MyEnv."""


class EpisodeStore:
    """The episodes that an evaluation has played so far.

    Args:
        config: the settings, with the folder ``out``.

    Raises:
        UsageError: the folder has episodes of an evaluation with other settings, or of more tasks
            or episodes.
    """

    def __init__(self, config: EvaluateConfig) -> None:
        self.folder = run_path(config.out, config)
        self.config = config
        self.settings = identity(config)
        self._played: dict[tuple[int, int], Trajectory] = {}
        self._read()

    @property
    def played(self) -> Mapping[tuple[int, int], Trajectory]:
        """The finished episodes by task and member. Failed episodes are played again."""
        return self._played

    def is_complete(self, tasks: int) -> bool:
        """Whether all episodes of the first ``tasks`` tasks have been played."""
        wanted = ((task, n) for task in range(tasks) for n in range(self.config.episodes))
        return all(key in self._played for key in wanted)

    def groups(self, tasks: int) -> list[TrajectoryGroup]:
        """The episodes of the first ``tasks`` tasks, if they are complete."""
        members = range(self.config.episodes)
        return [TrajectoryGroup([self._played[t, n] for n in members]) for t in range(tasks)]

    def start(self, tasks: int) -> None:
        """Record the settings, before the first episode.

        Raises:
            UsageError: the folder has episodes of more tasks, or of more episodes per task.
        """
        most = max((task + 1 for task, _ in self._played), default=0)
        deepest = max((member + 1 for _, member in self._played), default=0)
        if most > tasks or deepest > self.config.episodes:
            raise UsageError(
                f"out ({self.folder}) holds {deepest} episodes of each of {most} tasks, more than "
                f"episodes={self.config.episodes} and tasks={tasks} keep: give larger numbers, or "
                "another out=..."
            )
        record = {"settings": self.settings}
        replace_text(self.folder / RECORD, json.dumps(record, indent=2) + "\n")

    def add(self, task: int, member: int, trajectory: Trajectory) -> None:
        """Append an episode to ``played.jsonl``, unless it failed.

        Raises:
            RunFailure: the file cannot be written.
        """
        if trajectory.failure is not None:
            return
        calls = {name: column.tolist() for name, column in to_calls([trajectory]).items()}
        record = {"task": task, "member": member, "episode": trajectory.to_json(), "calls": calls}
        path = self.folder / PLAYED
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> None:
        path = self.folder / RECORD
        if not path.is_file():
            return
        before = settings_in(path)
        changed = sorted(
            key for key in {**before, **self.settings} if before.get(key) != self.settings.get(key)
        )
        if changed:
            raise UsageError(
                f"out ({self.folder}) holds an evaluation with other settings "
                f"({', '.join(changed[:4])}): choose another out=..., or delete that folder"
            )
        if (self.folder / EPISODES).is_file():
            self._keep(_in_order(read_trajectories(self.folder / EPISODES)))
        self._keep(_read_played(self.folder / PLAYED))

    def _keep(self, episodes: Iterable[tuple[int, int, Trajectory]]) -> None:
        self._played |= {(t, n): e for t, n, e in episodes if e.failure is None}


def write_episodes(folder: Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Write all episodes to ``trajectories.jsonl.gz``, and remove the file of single episodes.

    Raises:
        RunFailure: a file cannot be written.
    """
    with writing(folder):
        write_trajectories(folder / EPISODES, groups)
        (folder / PLAYED).unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """``value`` with None for each number that is not finite, because JSON has no such numbers.

    Example:
        >>> finite({"low": float("-inf"), "high": 1.0})
        {'low': None, 'high': 1.0}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return value


def identity(config: EvaluateConfig) -> dict[str, str]:
    """The settings on which an evaluation's episodes depend, with the state of the files they name.

    Secrets are hidden: the folder may be published.

    ``tasks`` and ``episodes`` are not among them: with larger numbers, the same episodes are played
    and further ones.
    """
    values: Mapping[str, Any] = as_values(to_plain(config))
    kept = {
        key: str(value)
        for key, value in values.items()
        if key not in _WITHOUT_EFFECT and not key.startswith(("log.", "cluster."))
    }
    kept["model files"] = _state_of(Path(config.model).expanduser())
    if files := _state_of_files(kept):
        kept["files"] = files
    return without_secrets(kept)


def _state_of(model: Path) -> str:
    """Names, sizes and times of a model's files; empty if the model is no folder."""
    if not model.is_dir():
        return ""
    files = sorted(path for path in model.iterdir() if path.suffix in _WEIGHTS)
    stats = [(path.name, path.stat()) for path in files]
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)


def _state_of_files(settings: Mapping[str, str]) -> str:
    """Sizes and times of the files that settings name: rows, templates, code of environments."""
    words = ((key, word) for key, text in settings.items() for word in _WORDS.split(text))
    states = ((key, _state_of_file(word)) for key, word in words)
    return " ".join(f"{key}:{state}" for key, state in states if state)


def _state_of_file(name: str) -> str:
    """Size and time of a file; empty if there is no file of this name."""
    try:
        path = Path(name).expanduser()
        stat = path.stat() if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        # A text that can be no path, or a home folder of an unknown user.
        return ""
    return f"{stat.st_size}:{stat.st_mtime_ns}" if stat else ""


def _read_played(path: Path) -> list[tuple[int, int, Trajectory]]:
    """The episodes of ``played.jsonl``. A last line that was cut off is dropped."""
    if not path.is_file():
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        # The next episode begins a new line.
        with writing(path):
            path.write_bytes(b"".join(line + b"\n" for line in lines))
    records = [json.loads(line) for line in lines]
    for record in records:
        calls = {name: np.asarray(column) for name, column in record.get("calls", {}).items()}
        add_calls([record["episode"]], calls)
    return [(r["task"], r["member"], Trajectory.from_json(r["episode"])) for r in records]


def _in_order(episodes: Iterable[Trajectory]) -> Iterator[tuple[int, int, Trajectory]]:
    """Task, member and record of each episode in ``trajectories.jsonl.gz``.

    A task's episodes stand together. In a mixture, the record names the task of its part.
    """
    task = -1
    for episode in episodes:
        task += episode.member == 0
        yield task, episode.member, episode


def settings_in(path: Path) -> dict[str, str]:
    """The settings in an ``evaluation.json``.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["settings"]
        # Earlier versions wrote secrets, too.
        return without_secrets({str(key): str(value) for key, value in found.items()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): delete the folder") from error
