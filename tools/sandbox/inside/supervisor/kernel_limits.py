"""Sets what the kernel enforces for a run: tasks, out-of-memory score, share of the processor."""

# Plain os calls: once per run.
# ruff: noqa: PTH116

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tools.sandbox.inside import kernel, procfs
from tools.sandbox.inside.config import Config

_NEIGHBOUR_TASKS = 32
"""Number of extra tasks, for processes that the same user starts outside of the run meanwhile."""


class OutOfMemoryScore:
    """Makes the kernel kill programs before their supervisors if memory runs out.

    Make the object before the run mounts its own /proc, which is read-only.
    """

    def __init__(self) -> None:
        kernel.set_dumpable(True)
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        kernel.set_dumpable(False)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """A context: if memory runs out, the kernel first kills the processes forked in it."""
        os.write(self._fd, b"1000")
        yield
        os.write(self._fd, self._own)
        os.close(self._fd)


def set_share(proc_fd: int, pid: int, nice: int) -> None:
    """Set the processor share of a process's Unix session, given as a niceness.

    If the scheduler shares the processor among sessions (autogroup), niceness and scheduling
    policies of processes count only within a session.

    Args:
        proc_fd: descriptor of a writable /proc, of any pid namespace that has the process.
        pid: the process.
        nice: 0 for an equal share, up to 19 for the smallest.

    Raises:
        BlockingIOError: the last change was less than 0.1 s ago.
        OSError: the process has ended, or the kernel has no autogroup.
    """
    pidfd = os.pidfd_open(pid)
    try:
        text = procfs.read(f"self/fdinfo/{pidfd}", folder=proc_fd)
    finally:
        os.close(pidfd)
    there = text.split(b"\nPid:", 1)[1].split(maxsplit=1)[0].decode()
    fd = os.open(f"{there}/autogroup", os.O_WRONLY, dir_fd=proc_fd)
    try:
        os.write(fd, b"%d" % nice)
    finally:
        os.close(fd)


def task_limit(config: Config) -> int:
    """The value of RLIMIT_NPROC for a run: the number of tasks that its user can have."""
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
