"""Limits that the kernel applies to a run: the number of tasks, and the out-of-memory score."""

# Plain os calls: once per run.
# ruff: noqa: PTH116

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config

_NEIGHBOUR_TASKS = 32
"""Extra tasks for processes that the same user starts elsewhere during the run."""


class OutOfMemoryScore:
    """Makes the kernel, out of memory, kill programs before their supervisors.

    It is made before the run mounts its own /proc, which is read-only.
    """

    def __init__(self) -> None:
        kernel.set_dumpable(True)
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        kernel.set_dumpable(False)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Processes that are forked in this context are killed first."""
        os.write(self._fd, b"1000")
        yield
        os.write(self._fd, self._own)
        os.close(self._fd)


def task_limit(config: Config) -> int:
    """RLIMIT_NPROC for the run: the number of tasks that the kernel allows its user."""
    if config.isolation == "namespaces":
        return config.processes + 1  # the supervisor has the same user and namespace
    if config.uids:
        return config.processes
    slack = _NEIGHBOUR_TASKS + 4 * (os.cpu_count() or 1)
    return _tasks_of(os.getuid()) + slack + config.processes


def _tasks_of(uid: int) -> int:
    total = 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            try:
                status = os.stat(f"/proc/{entry.name}/task")
            except (FileNotFoundError, PermissionError):
                continue
            if status.st_uid == uid:
                total += status.st_nlink - 2
    return total
