"""A separate process that cleans up when this process ends, even if this process is killed.

A killed trainer cannot close anything. Its servers would keep running, and their shared memory
would remain. The guard is this file, run as a program. It waits until its input ends; the system
ends the input when the parent ends. Then the guard kills a process group and removes its shared
memory.

Other containers, whose processes are invisible here, may share the folder. Therefore the guard
removes only shared memory that it saw the group use.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KILL_S = 10.0
"""Seconds that killed processes may take to disappear."""
_LEFT_BEHIND = ("psm_", "sem.mp-")
_FINISH_S = 2 * KILL_S
_EVERY_S = 0.02
_LOOK_S = 1.0


def shared_memory_here() -> str:
    """Which shared memory this process sees; processes with the same answer share files there.

    Without shared memory, the folder of temporary files counts.
    """
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        kernel = str(uuid.uuid4())  # Unknown: it counts as another machine's.
    stat = folder.stat()
    return f"{kernel} {stat.st_dev} {stat.st_ino}"


class Guard:
    """A process that watches this process, and cleans up when this process ends.

    Args:
        group: a process group that is killed when this process ends. Shared memory that the guard
            saw the group use is removed, if it is new and no process uses it any more.
        folder: a folder that is deleted when this process ends.

    Raises:
        OSError: the system cannot start another process.
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
        """Clean up now. Returns whether the cleanup succeeded within ``_FINISH_S`` seconds."""
        assert self._process.stdin is not None
        # Closing alone is not enough: a copy of this process may hold the pipe, too.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as words:
            words.write(b"now\n")
            words.flush()
        try:
            return self._process.wait(_FINISH_S) == 0
        except subprocess.TimeoutExpired:
            self.dismiss()
            return False

    def dismiss(self) -> None:
        """End the guard, without cleaning up."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def shared_memory() -> set[Path]:
    """Files of shared memory that Python's ``multiprocessing`` created, in any process."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(_LEFT_BEHIND)}


class Used:
    """Files of shared memory that certain processes use or used.

    Args:
        processes: returns the current ids of the processes.
        before: files that existed before these processes.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], before: set[Path]) -> None:
        self._processes = processes
        self._before = before
        self._seen: dict[Path, int] = {}

    def observe(self) -> None:
        """Record the files that the processes use now."""
        if new := shared_memory() - self._before - self._seen.keys():
            used = {inode for pid in self._processes() for inode in _used_by(Path(f"/proc/{pid}"))}
            self._seen |= {path: inode for path in new if (inode := _inode(path)) in used}

    def orphans(self) -> set[Path]:
        """The recorded files that belong to this user and that no process uses now."""
        found = set()
        for path, inode in self._seen.items():
            with contextlib.suppress(OSError):
                status = path.stat()
                if (status.st_ino, status.st_uid) == (inode, os.geteuid()) and orphaned(path):
                    found.add(path)
        return found


def orphaned(path: Path) -> bool:
    """Whether no visible process has the file mapped or open."""
    inode = _inode(path)
    return inode > 0 and not any(inode in _used_by(p) for p in Path("/proc").glob("[0-9]*"))


def members(group: int) -> list[int]:
    """Ids of a group's processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                found.append(int(process.name))
    return found


def _used_by(process: Path) -> set[int]:
    """Inodes of the shared memory that a process has mapped or open, as far as visible.

    Inodes are compared instead of names, because a semaphore stays mapped under its temporary first
    name.
    """
    used = set()
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text().splitlines():
            if str(SHARED_MEMORY) in line:
                used.add(int(line.split()[4]))
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # The file may be closed by now.
                if descriptor.readlink().parent == SHARED_MEMORY:
                    used.add(descriptor.stat().st_ino)
    return used


def _inode(path: Path) -> int:
    """The file's inode, or 0 if the file does not exist."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def kill_group(group: int) -> None:
    """Kill every process of a group, including stopped ones."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Whether the group has a process. A zombie counts."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(argv: Sequence[str]) -> None:
    """Wait until the input ends, then clean up."""
    group, folder, *there = argv
    used = Used(lambda: members(int(group)), {SHARED_MEMORY / name for name in there})
    while not select.select([sys.stdin], [], [], _LOOK_S if group else None)[0]:
        used.observe()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if group:
        used.observe()
        kill_group(int(group))
        end = time.monotonic() + KILL_S
        while group_exists(int(group)) and time.monotonic() < end:
            time.sleep(_EVERY_S)
        for path in used.orphans():
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
