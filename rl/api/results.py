"""Results of the functions of ``rl``, read from the folders of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import UsageError
from rl.run.metrics.intervals import PassRate

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.viewer.episodes.rows import Row


@dataclass(frozen=True)
class Run:
    """A run of :func:`rl.fit`, or of ``python -m rl.train``."""

    folder: Path
    """The folder with all files of the run; see docs/runs.md."""
    finished: bool
    """Whether all steps are done. A stopped run is unfinished and can continue."""
    steps: int
    """Number of steps that are done."""
    before: PassRate | None
    """Success on test tasks before the first step, or None if it was not measured."""
    after: PassRate | None
    """Success on test tasks with the weights that did best on validation tasks, or None if it was
    not measured."""
    best: Path | None
    """The checkpoint with the best weights, for ``from_pretrained``. None if there is none."""
    best_step: int
    """The step of the best checkpoint."""
    result: Mapping[str, Any] = field(repr=False)
    """The content of result.json."""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl: metrics of steps, under TRL's names, and of evaluations."""
        return _lines(self.folder / "metrics.jsonl")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json: all settings."""
        settings: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        return settings

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last step. Empty before the first step is done."""
        return next((r for r in reversed(self.history) if "reward" in r), {})

    def episodes(self) -> list[Row]:
        """A row for each recorded episode, by step, file and line: a table for pandas or polars.

        The first call reads all files of episodes; later ones read new files only.

        Raises:
            UsageError: a file is damaged, or the folder of episodes cannot be read.
        """
        from rl.viewer.episodes.table import all_rows

        return all_rows(self.folder / "trajectories")


@dataclass(frozen=True)
class Evaluation:
    """Result of :func:`rl.evaluate`."""

    success: PassRate
    metrics: Mapping[str, Any] = field(repr=False)
    """All numbers that ``python -m rl.eval json=true`` prints."""
    groups: Sequence[TrajectoryGroup] = field(repr=False)
    """The episodes, one group for each task. ``group.trajectories`` contain all tokens."""
    folder: Path | None = None
    """The folder with the episodes and the result, or None without the setting ``out``."""


@dataclass(frozen=True)
class Result:
    """Result of the functions other than ``rl.fit`` and ``rl.evaluate``."""

    folder: Path | None
    """The folder with the output, the settings and the losses, or None without an output."""
    made: Path | None
    """The output itself: a model's folder, or a file in ``folder``. None without an output."""
    metrics: Mapping[str, Any] = field(repr=False)
    """The numbers that the job's command, for example ``python -m rl.sft``, prints as JSON."""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The losses of each step. Empty if nothing was trained."""
        return [] if self.folder is None else _lines(self.folder / "metrics.jsonl")


def read_run(folder: str | Path) -> Run:
    """Read a finished or unfinished run from its folder.

    Raises:
        UsageError: the folder holds no run.
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise UsageError(f"{folder} holds no run: {path / 'config.json'} is missing")
    file = path / "result.json"
    result = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    best = path / "checkpoints" / "best"
    return Run(
        folder=path,
        finished=bool(result.get("finished", False)),
        steps=int(result.get("steps", 0)),
        before=_success(result.get("before")),
        after=_success(result.get("after")),
        best=best if best.is_dir() else None,
        best_step=int(result.get("best_step", 0)),
        result=result,
    )


def _success(tested: Mapping[str, Any] | None) -> PassRate | None:
    if tested is None:
        return None
    low, high = tested["success_low"], tested["success_high"]
    return PassRate(tested["success"], low, high, tested["tasks"])


def _lines(file: Path) -> list[dict[str, Any]]:
    """The records of a JSON lines file, without an incomplete last line."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
