"""Finds the model that ``model=...`` names. A run's folder stands for its best checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from rl.errors import UsageError
from rl.settings.parsing.files import like_folder

MADE = ("config.json", "adapter_config.json")
"""Names of files; a folder that contains one of them holds a model."""
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def find_model(model: str, key: str = "model") -> str:
    """The folder that ``model`` names, or ``model`` itself if it is "tiny" or a hub id.

    A run's folder stands for its checkpoints/best, else its checkpoints/last, else its newest
    checkpoints/step-*.

    Raises:
        UsageError: the folder does not exist, or holds no model.
    """
    path = Path(model).expanduser()
    if model == "tiny" or (path.is_dir() and _is_model(path)):
        return model
    if path.is_dir():
        return str(_saved(path, f"{key} ({model})"))
    if path.exists():
        raise UsageError(f"{key} ({model}) is a file: give the folder of a model, or of a run")
    if not _HUB_ID.fullmatch(model) or _among_runs(path):
        raise UsageError(f"{key} ({model}) does not exist: no such folder.{like_folder(path)}")
    return model


def _is_model(folder: Path) -> bool:
    # A run's folder has a config.json too, the run's own.
    return any((folder / name).is_file() for name in MADE) and not _is_run(folder)


def _is_run(folder: Path) -> bool:
    return _checkpoints(folder).is_dir() or (folder / "metrics.jsonl").is_file()


def _checkpoints(run: Path) -> Path:
    return run / "checkpoints"


def _among_runs(path: Path) -> bool:
    """Whether the parent folder of ``path`` holds output folders of commands."""
    return path.parts[0] == "runs" or (
        path.parent != Path() and any(path.parent.glob("*/checkpoints"))
    )


def _saved(run: Path, setting: str) -> Path:
    """The checkpoint that a run's folder stands for.

    Args:
        run: the folder.
        setting: key and value, for messages.

    Raises:
        UsageError: the run has no checkpoint.
    """
    checkpoints = _checkpoints(run)
    steps = sorted(checkpoints.glob("step-*"), reverse=True)
    for folder in (checkpoints / "best", checkpoints / "last", *steps):
        if folder.is_dir() and _is_model(folder):
            return folder
    if _is_run(run):
        raise UsageError(f"{setting} is a run that saved no model yet: {checkpoints} holds none")
    inner = sorted(str(folder.parent) for folder in run.glob("*/checkpoints"))
    give = f"give one of {', '.join(inner)}" if inner else "give the folder of a model or a run"
    raise UsageError(f"{setting} holds no model ({' or '.join(MADE)}): {give}")
