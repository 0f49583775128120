"""A process that cleans up after this one, however this one ends.

A trainer that is killed closes nothing: its servers would go on, and what it and they keep in
shared memory would stay. A guard waits until its input ends, which the system sees to, and then
kills a process group and removes what is left. It is this file, run as a program of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KILL_S = 10.0
"""How long processes that were killed may take to be gone."""
_LEFT_BEHIND = ("psm_", "sem.mp-")
_EVERY_S = 0.02


class Guard:
    """Watches over this process from outside of it.

    Args:
        group: a process group that ends with this process. Shared memory that nobody uses then,
            and that was not there before, goes with it.
        folder: one that is deleted.

    Raises:
        OSError: the system has no room for another process.
    """

    def __init__(self, *, group: int | None = None, folder: Path | None = None) -> None:
        words = ["" if group is None else str(group), "" if folder is None else str(folder)]
        there = sorted(path.name for path in shared_memory())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *words, *there],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End it: what it was for is done."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def shared_memory() -> set[Path]:
    """Files of shared memory as Python's ``multiprocessing`` makes them, anybody's."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(_LEFT_BEHIND)}


def remove_orphans(paths: set[Path]) -> None:
    """Remove those of these files that are this user's and that nobody uses."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid() and orphaned(path):
                path.unlink(missing_ok=True)


def orphaned(path: Path) -> bool:
    """Whether no process has it mapped or open: others on this machine use such files as well.

    Told by its inode: a semaphore is mapped under the name that it had before it got its own.
    """
    try:
        inode = path.stat().st_ino
    except OSError:
        return False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for line in (process / "maps").read_text().splitlines():
                if str(SHARED_MEMORY) in line and line.split()[4] == str(inode):
                    return False
            if any(descriptor.readlink() == path for descriptor in (process / "fd").iterdir()):
                return False
        except OSError:
            continue
    return True


def kill_group(group: int) -> None:
    """Kill every process of a group, stopped ones as well."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Whether a process of the group is there, and be it one that nobody waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(argv: Sequence[str]) -> None:
    """Wait for the end of the input; then clean up."""
    group, folder, *there = argv
    before = {SHARED_MEMORY / name for name in there}
    sys.stdin.buffer.read()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if group:
        kill_group(int(group))
        end = time.monotonic() + KILL_S
        while group_exists(int(group)) and time.monotonic() < end:
            time.sleep(_EVERY_S)
        remove_orphans(shared_memory() - before)


if __name__ == "__main__":
    main(sys.argv[1:])
