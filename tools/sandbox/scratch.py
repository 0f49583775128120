"""Folders of this process that others can tell to be alive, and the removal of dead ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tools.sandbox.inside.surroundings import remove_tree

_making = threading.Lock()
"""A new folder is not held yet: no other thread sweeps."""


class Scratch:
    """A new folder, held until ``release``: a process that is killed lets go of it as well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hold: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._hold, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let go: whoever sweeps may remove it. Releasing twice is harmless."""
        hold, self._hold = self._hold, None
        if hold is not None:
            os.close(hold)


def make(parent: Path, prefix: str, mode: int) -> Scratch:
    """A new folder below ``parent``; those that nobody needs any more are removed first."""
    with _making:
        sweep(parent, prefix)
        path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
        made = Scratch(path)
    path.chmod(mode)
    return made


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders below ``parent`` that nobody holds and whose owners are gone.

    This process's own are among them: it holds what it uses. Another owner is gone when no process
    has its number, and holds its folder all the same if it lives in a container that shares the
    folder and numbers its processes for itself.
    """
    for folder in _own_folders(parent, prefix):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if not owner.isdigit() or (int(owner) != os.getpid() and Path("/proc", owner).exists()):
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
