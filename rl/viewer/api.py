"""Answers to the page's questions, as plain data. The server and the export use the same ones."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import envs
from envs.base.pictures import Drawable
from rl.errors import UsageError
from rl.settings.parsing.files import flatten
from rl.viewer.compare import compare
from rl.viewer.curves import curves, summary
from rl.viewer.episodes.episode import read_episode, read_episodes, read_tokens
from rl.viewer.episodes.index import Query
from rl.viewer.episodes.rows import Row
from rl.viewer.runs import Run, Runs

logger = logging.getLogger(__name__)
Parameters = Mapping[str, str]
_MOST_ROWS = 500
_INDEXING_S = 0.5
"""Seconds that a request spends on reading new files, if the list is not complete yet."""


def list_runs(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """All runs, each with its status, its results and its most important finding."""
    found = runs.find()
    return {
        "root": str(runs.root),
        "single": runs.single,
        "runs": [summary(run) | {"worst": run.worst()} for run in found.values()],
    }


def show_run(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """A run's settings, status, results and problems."""
    run = _run(runs, parameters)
    config, versions = run.config(), run.versions()
    left = run.index.update(_INDEXING_S)
    problems, checked = run.problems()
    return summary(run) | {
        "config": {key: _as_text(value) for key, value in flatten(config).items()},
        "versions": {key: _as_text(value) for key, value in flatten(versions).items()},
        "problems": problems,
        "checked": checked,
        "errors": run.index.errors(),
        "counts": run.index.counts(),
        "files_left": left,
    }


def show_curves(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """Metrics of a run as columns: the names in ``names``, or the main ones."""
    run = _run(runs, parameters)
    names = [name for name in parameters.get("names", "").split(",") if name]
    return curves(run.metrics(), names)


def list_episodes(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """The rows from ``offset`` of the episodes that match, and the number of all of them."""
    run = _run(runs, parameters)
    left = run.index.update(_INDEXING_S)
    offset = _integer(parameters, "offset", 0)
    limit = min(_MOST_ROWS, _integer(parameters, "limit", 100))
    start = time.perf_counter()
    ids = run.index.find(Query.of(parameters))
    rows = run.index.rows(ids[offset : offset + limit])
    return {
        "total": len(ids),
        "offset": offset,
        "rows": [row._asdict() for row in rows],
        "files_left": left,
        "seconds": round(time.perf_counter() - start, 4),
    }


def show_episode(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """One episode, without its tokens, the rows of its group, and whether it has neighbours."""
    run = _run(runs, parameters)
    row = _row(run, parameters)
    group = run.index.group(row.file, row.grp)
    episode = _drawn(read_episode(run.trajectories, row))
    return episode | {
        "group": [member._asdict() for member in group],
        "previous": run.index.row(row.file, row.line - 1) is not None,
        "next": run.index.row(row.file, row.line + 1) is not None,
    }


def show_tokens(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """The tokens of one episode with their numbers."""
    run = _run(runs, parameters)
    return read_tokens(run.trajectories, _row(run, parameters), run.decoder)


def show_group(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """All episodes of a group, without their tokens."""
    run = _run(runs, parameters)
    row = _row(run, parameters)
    members = run.index.group(row.file, row.grp)
    return {"members": [_drawn(member) for member in read_episodes(run.trajectories, members)]}


def show_comparison(runs: Runs, parameters: Parameters) -> dict[str, Any]:
    """Two runs on the tasks that both played."""
    return compare(
        _run(runs, parameters),
        runs.run(parameters.get("other", "")),
        parameters.get("kind", "train"),
    )


ANSWERS: dict[str, Callable[[Runs, Parameters], dict[str, Any]]] = {
    "runs": list_runs,
    "run": show_run,
    "curves": show_curves,
    "episodes": list_episodes,
    "episode": show_episode,
    "tokens": show_tokens,
    "group": show_group,
    "compare": show_comparison,
}
"""The functions by the last part of their URL, ``/api/NAME``."""


def answer(runs: Runs, name: str, parameters: Parameters) -> str:
    """The answer to the question ``name`` as JSON."""
    return as_json(ANSWERS[name](runs, parameters))


def as_json(value: Any) -> str:
    """``value`` as JSON in ASCII. A number that is not finite becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _drawn(episode: dict[str, Any]) -> dict[str, Any]:
    """An episode with the pictures that its environment draws.

    Only registered environments draw. A run's folder must not choose a file to import.
    """
    env_id = episode["env_id"]
    if env_id not in envs.ids():
        return episode
    actions = [turn["action"] for turn in episode["turns"]]
    try:
        kind: object = envs.env_type(env_id)
        if not isinstance(kind, Drawable):
            return episode
        drawn = kind.pictures(episode["observation"], actions)
        return episode | {"pictures": [picture and asdict(picture) for picture in drawn]}
    except Exception as error:  # Code of a plug-in: its episodes are shown without pictures.
        logger.warning("%s.pictures failed: %r", env_id, error)
        return episode


def _run(runs: Runs, parameters: Parameters) -> Run:
    return runs.run(parameters.get("run", ""))


def _row(run: Run, parameters: Parameters) -> Row:
    """The row of the episode in ``parameters``.

    Raises:
        UsageError: there is no such episode.
    """
    file, line = parameters.get("file", ""), _integer(parameters, "line", 0)
    # A resumed run writes files anew: the row must be that of the file as it is now.
    run.index.refresh(file)
    row = run.index.row(file, line)
    if row is None:
        raise UsageError(
            f"{run.name} has no episode {file}/{line}; with keep_episodes above 0, a run keeps the "
            "newest ones only"
        )
    return row


def _integer(parameters: Parameters, name: str, default: int) -> int:
    text = parameters.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UsageError(f"{name} ({text}) must be a number")
    return int(text)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
