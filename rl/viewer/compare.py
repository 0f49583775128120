"""Two runs side by side on the tasks that both played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.settings.parsing.files import flatten
from rl.viewer.runs import Run

_MOST = 2000
_UPDATE_S = 5.0


def compare(first: Run, second: Run, kind: str) -> dict[str, Any]:
    """Settings that differ, and mean rewards by task, the largest difference first.

    Args:
        first: a run.
        second: another run.
        kind: the kind of episodes, such as "train" or "validation".
    """
    tasks = []
    for run in (first, second):
        run.index.update(_UPDATE_S)
        tasks.append({(row[0], row[1]): row[2:] for row in run.index.tasks(kind)})
    ours, theirs = tasks
    shared = [
        {
            "env": env,
            "task": task,
            "first": _side(ours[env, task]),
            "second": _side(theirs[env, task]),
            "difference": theirs[env, task][0] - ours[env, task][0],
        }
        for env, task in ours.keys() & theirs.keys()
    ]
    shared.sort(key=lambda row: (-abs(row["difference"]), row["env"], row["task"]))
    return {
        "kind": kind,
        "settings": _settings(first.config(), second.config()),
        "kinds": [
            name for name in first.index.counts()["kind"] if name in second.index.counts()["kind"]
        ],
        "num_tasks": [len(ours), len(theirs), len(shared)],
        "better": sum(row["difference"] > 0 for row in shared),
        "worse": sum(row["difference"] < 0 for row in shared),
        "tasks": shared[:_MOST],
    }


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, str]]:
    """The settings that differ, by name. A setting that a run lacks is an empty text."""
    ours, theirs = flatten(first), flatten(second)
    names = [*ours, *(name for name in theirs if name not in ours)]
    sides = [(name, str(ours.get(name, "")), str(theirs.get(name, ""))) for name in names]
    return [
        {"name": name, "first": one, "second": other}
        for name, one, other in sides
        if one != other and name != "out"
    ]


def _side(row: tuple[Any, ...]) -> dict[str, Any]:
    """One run's episodes of a task. ``file`` and ``line`` are of the newest one."""
    reward, count, step, file, line = row
    return {"reward": reward, "count": count, "step": step, "file": file, "line": line}
