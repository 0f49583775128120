"""Limits that no kernel limit covers without cgroups: a run's memory and files in total."""

# Plain os calls: these lines run every 25 ms beside each program.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from tools.sandbox.inside.config import Config
from tools.sandbox.inside.surroundings import MAX_FILES, Place

_PAGE = os.sysconf("SC_PAGESIZE")
_FIRST_S = 0.02
"""A program that ends before costs no look."""
_SHARE = 8
"""Ticks may use one part in so many of a core."""


class Watchdog:
    """Looks at a run now and then and says when it uses too much."""

    def __init__(
        self,
        config: Config,
        place: Place,
        *,
        memory_mb: int,
        disk_mb: int,
        processes: int,
        members: Callable[[], list[int]] | None = None,
    ) -> None:
        self.reason = ""
        everything = (
            _namespace_members if config.isolation == "namespaces" else lambda: descendants()
        )
        self._members = members or everything
        self._place = place
        self._memory = memory_mb << 20
        self._disk = disk_mb << 20
        self._processes = processes
        self._next = time.monotonic() + _FIRST_S

    def tick(self) -> str:
        """How the run must end, "memory" or "killed" with a ``reason``; "" when all is well."""
        started = time.monotonic()
        if started < self._next:
            return ""
        verdict = self._look()
        now = time.monotonic()
        self._next = now + (now - started) * (_SHARE - 1)
        return verdict

    def _look(self) -> str:
        members = self._members()
        # The kernel's limit is exact only where a run has a user of its own.
        if len(set(members)) > self._processes:
            self.reason = f"more than {self._processes} processes"
            return "killed"
        # Pages shared with the zygote count in each process's RSS: the exact sum, which is slower
        # to get, decides.
        if _sum(members, _resident) > self._memory:
            used = _sum(members, _proportional)
            if used > self._memory:
                self.reason = f"{used >> 20} MiB in use, {self._memory >> 20} MiB allowed"
                return "memory"
        if not self._place.private:
            size, count = _disk_use(self._place.folder)
            if size > self._disk:
                self.reason = f"files exceed {self._disk >> 20} MiB"
                return "killed"
            if count > MAX_FILES:
                self.reason = f"more than {MAX_FILES} files"
                return "killed"
        return ""


def _sum(members: list[int], measure: Callable[[int], int]) -> int:
    total = 0
    for pid in members:
        try:
            total += measure(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return total


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        pass  # it made itself unreadable: its resident size counts in full
    return _resident(pid)


def _namespace_members() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def descendants(root: int | None = None) -> list[int]:
    """Every living or unreaped process below ``root``, or below this one."""
    found: list[int] = []
    pending = [os.getpid() if root is None else root]
    while pending:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def children(pid: int) -> list[int]:
    """The living or unreaped children of a process, which may be gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def _disk_use(folder: str) -> tuple[int, int]:
    """Bytes on disk and entries below ``folder``; stops counting beyond ``MAX_FILES``."""
    size = count = 0
    pending = [folder]
    while pending and count <= MAX_FILES:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
                return size, MAX_FILES + 1  # what lies in there cannot be measured
    return size, count
