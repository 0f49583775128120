"""Folders of this process that others can tell to be alive, and the removal of dead ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.sandbox.inside.surroundings import remove_tree


@dataclass(frozen=True)
class Scratch:
    """A new folder, held until ``release``: a process that is killed lets go of it as well."""

    path: Path
    _hold: int

    def release(self) -> None:
        """Let go: whoever sweeps may remove it."""
        os.close(self._hold)


def make(parent: Path, prefix: str, mode: int) -> Scratch:
    """A new folder below ``parent``; those that killed processes left there are removed first."""
    sweep(parent, prefix)
    path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    hold = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(hold, fcntl.LOCK_SH)
    path.chmod(mode)
    return Scratch(path, hold)


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders below ``parent`` whose owners are gone.

    An owner is gone when no process has its number, and nobody holds its folder: containers that
    share a folder number their processes each for themselves.
    """
    for folder in _own_folders(parent, prefix):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if not owner.isdigit() or Path("/proc", owner).exists():
            continue
        # Somebody else may sweep at the same time.
        with contextlib.suppress(OSError):
            hold = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(folder))
            finally:
                os.close(hold)


def _own_folders(parent: Path, prefix: str) -> Iterator[Path]:
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                yield folder
