"""Where ``model=...`` leads: a run's folder stands for its best checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from rl.errors import UsageError
from rl.settings.files import like_folder

MADE = ("config.json", "adapter_config.json")
"""A model's folder has one of them."""
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def find_model(model: str, key: str = "model") -> str:
    """The folder that ``model`` names, or ``model`` itself where it is "tiny" or a hub id.

    A run's folder stands for the first of its checkpoints/best, checkpoints/last and the newest
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
        raise UsageError(f"{key} ({model}) is not there: no such folder.{like_folder(path)}")
    return model


def _is_model(folder: Path) -> bool:
    # A run's folder has a config.json as well: the run's own.
    return any((folder / name).is_file() for name in MADE) and not _checkpoints(folder).is_dir()


def _checkpoints(run: Path) -> Path:
    return run / "checkpoints"


def _among_runs(path: Path) -> bool:
    """Whether the folder above holds what commands leave behind."""
    return path.parts[0] == "runs" or (
        path.parent != Path() and any(path.parent.glob("*/checkpoints"))
    )


def _saved(run: Path, told: str) -> Path:
    """The checkpoint that stands for a folder which is no model's itself.

    Raises:
        UsageError: there is none.
    """
    checkpoints = _checkpoints(run)
    steps = sorted(checkpoints.glob("step-*"), reverse=True)
    for folder in (checkpoints / "best", checkpoints / "last", *steps):
        if folder.is_dir() and _is_model(folder):
            return folder
    if checkpoints.is_dir():
        raise UsageError(f"{told} is a run that saved no model yet: {checkpoints} holds none")
    inner = sorted(str(folder.parent) for folder in run.glob("*/checkpoints"))
    give = f"give one of {', '.join(inner)}" if inner else "give the folder of a model or a run"
    raise UsageError(f"{told} holds no model ({' or '.join(MADE)}): {give}")
