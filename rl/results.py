"""What the functions of ``rl`` return, read from the folders that runs leave behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import UsageError
from rl.run.metrics import PassRate

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup


@dataclass(frozen=True)
class Run:
    """A run of :func:`rl.fit`, or of ``python -m rl.train``."""

    folder: Path
    """Everything that the run wrote; docs/runs.md says what is in it."""
    finished: bool
    """False: it was stopped before its last step, and can go on."""
    steps: int
    """Steps that are done."""
    before: PassRate | None
    """On test tasks, before the first step; None where there are none."""
    after: PassRate | None
    """On the same with the best weights by validation; None where that was not measured."""
    best: Path | None
    """The checkpoint with these weights, which ``from_pretrained`` reads; None: there is none."""
    best_step: int
    """The step that it was saved after."""
    result: Mapping[str, Any] = field(repr=False)
    """All of result.json."""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: a step's metrics each, under TRL's names, and tests."""
        return _lines(self.folder / "metrics.jsonl")

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last step; empty before the first one is done."""
        return next((r for r in reversed(self.history) if "reward" in r), {})


@dataclass(frozen=True)
class Evaluation:
    """What :func:`rl.evaluate` measured."""

    success: PassRate
    metrics: Mapping[str, Any] = field(repr=False)
    """Everything that ``python -m rl.eval json=true`` prints."""
    groups: Sequence[TrajectoryGroup] = field(repr=False)
    """The episodes, a group for each task; ``group.trajectories`` has them token for token."""
    folder: Path | None = None
    """Where the episodes and the result were written; None: nowhere."""


@dataclass(frozen=True)
class Result:
    """What any other function made."""

    folder: Path | None
    """Where it is, with its settings and losses; None: a comparison makes nothing."""
    made: Path | None
    """In it, the model's folder or the file."""
    metrics: Mapping[str, Any] = field(repr=False)
    """What the command prints as its line of JSON."""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A step's losses each; empty where nothing was trained."""
        return [] if self.folder is None else _lines(self.folder / "metrics.jsonl")


def read_run(folder: str | Path) -> Run:
    """The run of a folder, as far as it is.

    Raises:
        UsageError: there is no run in it.
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
    """The records of a JSON lines file, without a last one that was cut short."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
