"""Enforces the limits of a run's total usage, which the kernel limits only by cgroups."""

# Plain os calls: this code runs every 25 ms beside each program.
# ruff: noqa: PTH110

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable
from typing import Any

from tools.sandbox.inside.config import Config
from tools.sandbox.inside.supervisor import mappings, process_tree, usage
from tools.sandbox.inside.supervisor.processes import Child, processor_s
from tools.sandbox.inside.workdir import MAX_FILES, WorkDir

_FIRST_S = 0.02
"""Seconds before the first check: shorter programs are never checked."""
_SHARE = 8
"""Checks use at most this part of a core: an eighth."""
_LEAST_S, MOST_S = 0.004, 0.025
"""Shortest and longest seconds between checks; shorter near a limit."""
_BYTES_PER_S = 4 << 30
"""Memory that a program fills in one second of processor time."""
_WEIGHT_OF_NICE = 1.25
"""Factor by which one step of niceness divides a thread's share of a processor."""
_MAX_NICE = 19
_NO_PRIORITY = os.sched_param(0)
_PROCESSORS = os.cpu_count() or 1


class Watchdog:
    """Measures a run regularly and returns the status with which to end it.

    Args:
        config: settings of the zygote.
        workdir: the run's folder.
        request: the run's limits.
        child: the program's process.
        members: lists the run's processes; None: all processes below this one.
    """

    def __init__(
        self,
        config: Config,
        workdir: WorkDir,
        request: dict[str, Any],
        child: Child,
        members: Callable[[], list[int]] | None = None,
    ) -> None:
        self.reason = ""
        everything = (
            process_tree.namespace_members
            if config.isolation == "namespaces"
            else process_tree.descendants
        )
        self._members = members or everything
        self._workdir = workdir
        self._child = child
        self._memory = request["memory_mb"] << 20
        self._disk = request["disk_mb"] << 20
        self._cpu_s = request["total_cpu_s"]
        self._processes = request["processes"]
        self._first_nice: int | None = None
        self._nice = -math.inf
        self._running = 0
        self._bomb = False
        self._events = config.group_events_fd
        self._kills = self._group_kills()
        self._held: dict[int, tuple[int, int]] = {}
        """Process -> resident bytes at its first and at its last check."""
        self._started_s = processor_s(child.pid)
        self._unreaped = _UnreapedTime()
        self._next = time.monotonic() + _FIRST_S
        self._pause_s = MOST_S

    @property
    def next_check_s(self) -> float:
        """Seconds until the next check is due."""
        return min(MOST_S, max(_LEAST_S / 2, self._next - time.monotonic()))

    def tick(self, *, now: bool = False) -> str:
        """Check the run if a check is due; the status with which to end it, or "".

        Args:
            now: check even if no check is due.
        """
        if not now and (time.monotonic() < self._next or self._starts_slowly()):
            return ""
        before = time.thread_time()  # on a busy machine, a cheap check may take long
        verdict = self._check()
        spent_s = (time.thread_time() - before) * (_SHARE - 1)
        self._next = time.monotonic() + max(self._pause_s, spent_s)
        return verdict

    def _starts_slowly(self) -> bool:
        """Whether the first check can wait once more: the program has hardly computed.

        A check costs ten times as much as this test, and many programs end before the next one.
        Later checks never wait: a child that lives between two of these tests leaves no trace.
        """
        started_s, self._started_s = self._started_s, math.inf
        if started_s == math.inf or self._members() != [self._child.pid]:
            return False
        self._next = time.monotonic() + _FIRST_S
        return processor_s(self._child.pid) - started_s < _FIRST_S / 2

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the cgroup for lack of memory."""
        if self._group_kills() == self._kills:
            return False
        self.reason = "all runs together used up the memory of the sandbox"
        return True

    def _group_kills(self) -> int:
        if self._events < 0:
            return 0
        lines = os.pread(self._events, 4096, 0).splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))

    def _check(self) -> str:
        members = set(self._members())
        # The kernel's limit is exact only if the run has its own user id.
        if len(members) > self._processes:
            self.reason = f"more than {self._processes} processes"
            return "killed"
        used: dict[int, usage.Usage] = {}
        for pid in members:
            with contextlib.suppress(OSError):  # the process has ended
                used[pid] = usage.of(pid)
        cpu_s = self._child.cpu_s + sum(one.cpu_s for one in used.values())
        cpu_s += self._unreaped.update(used, self._child.cpu_s)
        if cpu_s > self._cpu_s:
            self.reason = f"{cpu_s:.2f} s of processor time, {self._cpu_s:g} s allowed"
            return "timeout"
        self._adjust_priority(used)
        try:
            entries = [one.entry for one in used.values()]
            maps = mappings.read(entries, self._processes)
            return self._memory_trouble(used, maps) or self._disk_trouble(entries, maps)
        except mappings.TooManyError:
            self.reason = "more mappings of memory than can be counted"
            return "memory"
        except usage.HiddenError:
            self.reason = "a process cannot be inspected: it runs an unreadable program"
            return "killed"

    def _memory_trouble(self, used: dict[int, usage.Usage], maps: dict[int, bytes]) -> str:
        rest = sum(one.tables for one in used.values()) + self._ending_memory(used)
        rest += usage.buffers(one.entry for one in used.values()) + mappings.kernel_memory(maps)
        # Each process's resident size includes pages shared with the zygote. If the sum is above
        # the limit, the exact sum, which is slower, decides.
        total = rest + sum(one.resident for one in used.values())
        if total > self._memory:
            total = rest
            for one in used.values():
                with contextlib.suppress(OSError):
                    total += usage.proportional(one.entry)
        self._pause_s = MOST_S
        self._check_before(self._memory - total)
        if total <= self._memory:
            return ""
        self.reason = f"{total >> 20} MiB in use, {self._memory >> 20} MiB allowed"
        return "memory"

    def _check_before(self, left: int) -> None:
        """Schedule the next check before the program can use up ``left`` bytes."""
        left_s = left / (_BYTES_PER_S * min(_PROCESSORS, self._processes))
        self._pause_s = min(self._pause_s, max(_LEAST_S, left_s))

    def _ending_memory(self, used: dict[int, usage.Usage]) -> int:
        """Memory that ending processes may still hold: their growth between checks.

        The memory of their first check may be shared with other processes.
        """
        last, self._held = self._held, {}
        total = 0
        for pid, one in used.items():
            first, then = last.get(pid, (one.resident, one.resident))
            self._held[pid] = first, then if one.ending else one.resident
            total += max(0, then - first) if one.ending else 0
        return total

    def _disk_trouble(self, entries: list[int], maps: dict[int, bytes]) -> str:
        if self._workdir.private:
            return ""
        size, count = _disk_use(self._workdir.folder)
        unnamed = mappings.deleted(maps, self._workdir.folder, self._disk)
        unnamed |= usage.deleted_files(entries, self._workdir.folder)
        size += sum(unnamed.values())
        self._check_before(self._disk - size)
        if size > self._disk:
            self.reason = f"files exceed {self._disk >> 20} MiB"
            return "killed"
        if count > MAX_FILES:
            self.reason = f"more than {MAX_FILES} files"
            return "killed"
        return ""

    def _adjust_priority(self, used: dict[int, usage.Usage]) -> None:
        """Raise the niceness of a run's threads, so that all together weigh as much as one thread.

        A run that keeps its maximum number of processes busy, and more than there are processors,
        acts like a fork bomb and gets only the time that other runs leave. With idle processors,
        this slows nothing down. The change is permanent: lowering niceness needs privileges.
        """
        if self._first_nice is None:
            self._first_nice = min((one.nice for one in used.values()), default=0)
        running = sum(len(one.running) for one in used.values())
        steady, self._running = min(running, self._running), running  # ignores short peaks
        if steady >= self._processes and steady > _PROCESSORS:
            self._bomb = True
        if steady > 1:
            steps = math.ceil(math.log(steady, _WEIGHT_OF_NICE))
            self._nice = max(self._nice, min(self._first_nice + steps, _MAX_NICE))
        for pid, one in used.items():
            with contextlib.suppress(OSError):
                if self._bomb and os.sched_getscheduler(pid) != os.SCHED_IDLE:
                    for task in usage.tasks(pid):
                        os.sched_setscheduler(task, os.SCHED_IDLE, _NO_PRIORITY)
                if one.nice < self._nice:
                    for task in usage.tasks(pid):
                        os.setpriority(os.PRIO_PROCESS, task, int(self._nice))


class _UnreapedTime:
    """Processor time of ended processes that no process reaped: a program may ignore SIGCHLD."""

    def __init__(self) -> None:
        self._last: dict[int, usage.Usage] = {}
        self._reaped_s = 0.0
        self._pending_s = 0.0
        self._total_s = 0.0

    def update(self, used: dict[int, usage.Usage], reaped_s: float) -> float:
        """The total, as of the check that measured ``used``.

        A process may be reaped between the measurements of itself and of its parent, so its time
        counts as lost only if the next check does not find it with the parent either.

        Args:
            used: usage of each process.
            reaped_s: processor seconds of the processes that the supervisor has reaped.
        """
        last = self._last
        # A process may also be missing because its parent ended while the list was made.
        missed = {pid: one for pid, one in last.items() if pid not in used and _exists(pid)}
        self._last = used | missed
        ended_s = sum(one.cpu_s for pid, one in last.items() if pid not in self._last)
        found_s = reaped_s - self._reaped_s
        self._reaped_s = reaped_s
        for pid, one in used.items():
            found_s += one.children_s - (last[pid].children_s if pid in last else 0.0)
        self._total_s += max(0.0, self._pending_s - max(0.0, found_s - ended_s))
        self._pending_s = max(0.0, ended_s - found_s)
        return self._total_s


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


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
                return size, MAX_FILES + 1  # the folder cannot be measured
    return size, count
