"""Reads folders of Harbor tasks, and assigns the tasks to splits."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envs.datasets.rows import Row
from envs.datasets.splits import Dataset, arrange
from envs.harbor.config import TaskConfig, read_config
from tools.references import depends_on, kept_while_unchanged

CONFIG = "task.toml"
_SHOWN = 3
"""Number of tasks that a message names."""


@dataclass(frozen=True)
class HarborTask:
    """One task folder."""

    name: str
    """Path of the folder, relative to the folder of all tasks."""
    folder: Path
    instruction: str
    config: TaskConfig

    @property
    def environment(self) -> Path:
        """Folder with the agent's ``Dockerfile``."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        """Folder with ``test.sh``."""
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        """Folder with ``solve.sh``, which need not exist."""
        return self.folder / "solution"


def load_tasks(
    source: str, only: str = "", refusal: Callable[[HarborTask], str] | None = None
) -> Dataset[HarborTask]:
    """The tasks in a folder, and in its subfolders.

    The names of the subfolders ``train``, ``validation`` and ``test`` name the split of their
    tasks. Otherwise a hash of the task's name selects the split.

    Args:
        source: a task folder, or a folder of task folders.
        only: patterns of names, with commas between them; other tasks are left out.
        refusal: returns why a task cannot be played, or "". None for tasks in containers.

    Raises:
        ValueError: there is no task, or a task cannot be played. The message names the task.
    """
    if not source:
        raise ValueError("tasks is missing: name a folder of Harbor tasks, as in tasks=FOLDER")
    return _load_tasks(str(Path(source).resolve()), only, refusal or container_refusal)


@kept_while_unchanged
def _load_tasks(
    source: str, only: str, refusal: Callable[[HarborTask], str]
) -> Dataset[HarborTask]:
    home = Path(source)
    depends_on(home)
    found = [task for task in _read(home) if _chosen(task.name, only)]
    if not found:
        which = f" that match only ({only})" if only else ""
        raise ValueError(f"tasks ({source}): no folders with {CONFIG}{which}")
    refused = [(task, why) for task in found if (why := refusal(task))]
    if refused:
        shown = "; ".join(f"{task.name}: {why}" for task, why in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise ValueError(
            f"tasks ({source}): {len(refused)} of {len(found)} tasks cannot be played: {shown}"
            f"{more}. Leave them out, as in only='{found[0].name}', or move them"
        )
    rows = ((_row(task), task.name, task) for task in found)
    return arrange(rows, source)


def _read(home: Path) -> Iterator[HarborTask]:
    if (home / CONFIG).is_file():
        yield _task(home, home.name)
        return
    for path in sorted(home.glob(f"**/{CONFIG}")):
        # A build context may hold another task.toml.
        inside = [parent for parent in path.parents[1:] if (parent / CONFIG).is_file()]
        if not any(parent.is_relative_to(home) for parent in inside):
            yield _task(path.parent, path.parent.relative_to(home).as_posix())


def _task(folder: Path, name: str) -> HarborTask:
    path = folder / "instruction.md"
    for file in (folder / CONFIG, path):
        depends_on(file)
    config = read_config(folder / CONFIG)
    try:
        instruction = path.read_text(encoding="utf-8").strip() if not config.steps else ""
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return HarborTask(name, folder, instruction, config)


def common_refusal(task: HarborTask) -> str:
    """Why a task can be played nowhere, or ""."""
    if why := task.config.refusal():
        return why
    if (task.environment / "docker-compose.yaml").exists():
        return "environment/docker-compose.yaml: tasks of several containers cannot be played"
    if not (task.tests / "test.sh").is_file():
        return "tests/test.sh is missing"
    return ""


def container_refusal(task: HarborTask) -> str:
    """Why a task cannot be played in a container, or ""."""
    if why := common_refusal(task):
        return why
    if not task.config.environment.docker_image and not _dockerfile(task.environment):
        return "it has neither environment/Dockerfile nor environment.docker_image"
    verifier = task.config.verifier
    named = verifier.environment is not None and verifier.environment.docker_image
    if verifier.separate and not named and not _dockerfile(task.tests):
        return "its separate verifier has neither tests/Dockerfile nor docker_image"
    return ""


def _dockerfile(folder: Path) -> bool:
    return (folder / "Dockerfile").is_file()


def _chosen(name: str, only: str) -> bool:
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()]
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def storage_warning(tasks: Iterable[HarborTask]) -> str:
    """A line about tasks whose ``storage_mb`` is not enforced, or "" if no task has one."""
    limited = [task.name for task in tasks if task.config.environment.storage_mb]
    if not limited:
        return ""
    more = f" and {len(limited) - _SHOWN} more" if len(limited) > _SHOWN else ""
    return (
        f"harbor-v0: environment.storage_mb of {', '.join(limited[:_SHOWN])}{more} is not "
        f"enforced: containers share the disk of the Docker engine"
    )


def _row(task: HarborTask) -> Row:
    first = task.name.split("/")[0]
    named = {"split": first} if first in ("train", "validation", "test") else {}
    return Row(str(task.folder), named)
