"""All episodes of a run as a table."""

from __future__ import annotations

from pathlib import Path

from rl.errors import UsageError
from rl.viewer.episodes.index import EpisodeIndex, database_of
from rl.viewer.episodes.rows import Row

_READ_S = 3600.0
"""Seconds after which reading new files is given up."""


def all_rows(trajectories: Path) -> list[Row]:
    """The rows of all episodes in a run's folder ``trajectories``, by step, file and line.

    Raises:
        UsageError: a file is damaged, the folder cannot be read, or reading takes over an hour.
    """
    index = EpisodeIndex(trajectories, database_of(trajectories.parent))
    try:
        left = index.update(_READ_S)
        if errors := index.errors():
            raise UsageError(errors[0])
        if left:
            raise UsageError(
                f"{trajectories}: {left} files of episodes were not read within {_READ_S:g} s: "
                "keep fewer episodes (keep_episodes), or call again to go on"
            )
        return index.all_rows()
    finally:
        index.close()
