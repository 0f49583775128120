"""A process that cleans up after this one, however this one ends.

A trainer that is killed closes nothing: its servers would go on, and what it and they keep in
shared memory would stay. A guard waits until its input ends, which the system sees to, and then
kills a process group and removes what is left. It is this file, run as a program of its own.

Shared memory is removed that the group was seen to use while it lived, and no other: containers may
share it whose processes cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KILL_S = 10.0
"""How long processes that were killed may take to be gone."""
_LEFT_BEHIND = ("psm_", "sem.mp-")
_FINISH_S = 2 * KILL_S
_EVERY_S = 0.02
_LOOK_S = 1.0


class Guard:
    """Watches over this process from outside of it.

    Args:
        group: a process group that ends with this process. Shared memory that it was seen to use,
            that nobody uses then, and that was not there before, goes with it.
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

    def finish(self) -> bool:
        """Have it do now what it is for; whether it did. Takes seconds at most."""
        assert self._process.stdin is not None
        # A word, not its end alone: a copy of this process may hold the pipe, too.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as words:
            words.write(b"now\n")
            words.flush()
        try:
            return self._process.wait(_FINISH_S) == 0
        except subprocess.TimeoutExpired:
            self.dismiss()
            return False

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


class Used:
    """Files of shared memory that some processes were seen to use.

    Args:
        processes: the numbers of those that are there when it is called.
        before: files that were there before these processes, and are none of theirs.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], before: set[Path]) -> None:
        self._processes = processes
        self._before = before
        self._seen: dict[Path, int] = {}

    def look(self) -> None:
        """See what they use now."""
        if new := shared_memory() - self._before - self._seen.keys():
            used = {inode for pid in self._processes() for inode in _used_by(Path(f"/proc/{pid}"))}
            self._seen |= {path: inode for path in new if (inode := _inode(path)) in used}

    def orphans(self) -> set[Path]:
        """Those files that are this user's and that nobody uses now."""
        found = set()
        for path, inode in self._seen.items():
            with contextlib.suppress(OSError):
                told = path.stat()
                if (told.st_ino, told.st_uid) == (inode, os.geteuid()) and orphaned(path):
                    found.add(path)
        return found


def orphaned(path: Path) -> bool:
    """Whether no process that can be seen has it mapped or open."""
    inode = _inode(path)
    return inode > 0 and not any(inode in _used_by(p) for p in Path("/proc").glob("[0-9]*"))


def members(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                found.append(int(process.name))
    return found


def _used_by(process: Path) -> set[int]:
    """Inodes of the shared memory that a process has mapped or open, as far as that can be seen.

    Not names: a semaphore is mapped under the one that it had before it got its own.
    """
    used = set()
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text().splitlines():
            if str(SHARED_MEMORY) in line:
                used.add(int(line.split()[4]))
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # It may be closed by now.
                if descriptor.readlink().parent == SHARED_MEMORY:
                    used.add(descriptor.stat().st_ino)
    return used


def _inode(path: Path) -> int:
    """0 where the file is not there."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


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
    used = Used(lambda: members(int(group)), {SHARED_MEMORY / name for name in there})
    while not select.select([sys.stdin], [], [], _LOOK_S if group else None)[0]:
        used.look()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if group:
        used.look()
        kill_group(int(group))
        end = time.monotonic() + KILL_S
        while group_exists(int(group)) and time.monotonic() < end:
            time.sleep(_EVERY_S)
        for path in used.orphans():
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
