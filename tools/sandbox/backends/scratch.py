"""Makes temporary folders that are locked while their owner lives, and removes abandoned ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tools.sandbox.inside.workdir import remove_tree

_making = threading.Lock()
"""Held while a folder is made, so that no other thread removes the folder before it is locked."""


class Scratch:
    """A new folder, locked until ``release`` is called or the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hold: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._hold, fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the lock, so that ``sweep`` can remove the folder.

        Releasing twice is harmless.
        """
        hold, self._hold = self._hold, None
        if hold is not None:
            os.close(hold)


def make(parent: Path, prefix: str, mode: int) -> Scratch:
    """Make a folder below ``parent``. Removes abandoned folders first."""
    with _making:
        sweep(parent, prefix)
        path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
        made = Scratch(path)
    path.chmod(mode)
    return made


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders below ``parent`` that are not locked and whose owners are dead.

    Unlocked folders of this process are also removed. Another owner counts as dead if no process
    has the process id in the folder's name. For an owner in a container, this id is wrong here, so
    only the lock protects the folder.
    """
    for folder in _own_folders(parent, prefix):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if not owner.isdigit() or (int(owner) != os.getpid() and Path("/proc", owner).exists()):
            continue
        # Another process may sweep at the same time.
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
