"""Enforces limits of a run's total usage, which the kernel itself can enforce only by cgroups."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Any

from tools.sandbox.inside.config import Config
from tools.sandbox.inside.supervisor import kernel_limits, mappings, process_tree, processes, usage
from tools.sandbox.inside.supervisor.processes import Child, processor_s
from tools.sandbox.inside.workdir import MAX_FILES, WorkDir, disk_use, free_bytes

_FIRST_S = 0.02
"""Seconds before the first check. A program that ends earlier is never checked."""
_SHARE = 8
"""Checks use at most one core divided by this number: an eighth of a core."""
_BURST_S = 0.006
"""Processor seconds that checks may use at once after a time with few checks."""
_LOOK_S = 0.001
"""Shortest time between looks at the room that is left for files, in seconds."""
_LEAST_S, MOST_S = 0.004, 0.025
"""Shortest and longest time between checks, in seconds. Near a limit, checks are more frequent."""
_BYTES_PER_S = 4 << 30
"""Number of bytes of memory that a program can fill in one second of processor time."""
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
        members: function that lists the run's processes. If None, all processes below this process
            are the run's.
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
        self._child = child
        self._memory = request["memory_mb"] << 20
        self._cpu_s = request["total_cpu_s"]
        self._processes = request["processes"]
        self._files = (
            None
            if workdir.private
            else _Files(workdir.folder, request["disk_mb"] << 20, self._processes, self._members)
        )
        self._first_nice: int | None = None
        self._nice = -math.inf
        self._running = 0
        self._bomb = False
        self._proc_fd = config.proc_fd
        self._events = config.group_events_fd
        self._kills = self._group_kills()
        self._held: dict[int, tuple[int, int]] = {}
        """For each process, its resident bytes at its first and at its last check."""
        self._started_s = processor_s(child.pid)
        self._unreaped = usage.UnreapedTime()
        self._shared = _SharedMemory()
        self._budget_s = _BURST_S
        """Processor seconds that the next checks may use; negative if the last ones used more."""
        self._refilled = time.monotonic()
        self._next = self._refilled + _FIRST_S
        self._look = self._refilled if self._files else math.inf
        self._pause_s = MOST_S
        self._stopped = False
        """Whether the caller has stopped the run's processes."""

    @property
    def next_check_s(self) -> float:
        """Seconds until the next check is due."""
        due_s = min(self._next, self._look) - time.monotonic()
        return min(MOST_S, max(_LOOK_S, due_s))

    def tick(self, *, now: bool = False) -> str:
        """Check the run if a check is due. Returns the status with which to end the run, or "".

        Args:
            now: whether to check everything now. If True, the caller must have stopped the
                processes.
        """
        if not now and not self._due():
            return ""
        before = time.thread_time()  # on a busy machine, a cheap check may take long
        self._stopped = now
        verdict = self._check()
        spent_s = time.thread_time() - before - self._shared.spent_s
        self._budget_s -= spent_s - (self._files.spent_s if self._files else 0.0)
        self._next = time.monotonic() + max(self._pause_s, -self._budget_s * _SHARE)
        return verdict

    def _due(self) -> bool:
        """Whether to check the run now: at its time, or earlier if its files may be too large."""
        now = time.monotonic()
        self._budget_s = min(_BURST_S, self._budget_s + (now - self._refilled) / _SHARE)
        self._refilled = now
        if self._files and now >= self._look:
            room = self._files.room()
            self._look = now + max(_LOOK_S, self._seconds_to_fill(room))
            if room < 0 and self._budget_s > 0 and not self._files.slow:
                return True
        return now >= self._next and not self._starts_slowly()

    def _starts_slowly(self) -> bool:
        """Whether the first check can wait once more, because the program has hardly computed.

        A check costs ten times as much as this test, and many programs end before the next check.
        Later checks never wait, because a child process that starts and ends between two of these
        tests would leave no trace.
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
        # Each process's resident size includes pages shared with the zygote.
        total = rest + sum(one.resident for one in used.values())
        total -= self._shared.counted_twice(used, total - self._memory, stopped=self._stopped)
        self._pause_s = MOST_S
        self._check_before(self._memory - total)
        if total <= self._memory:
            return ""
        self.reason = f"{total >> 20} MiB in use, {self._memory >> 20} MiB allowed"
        return "memory"

    def _check_before(self, left: int) -> None:
        """Schedule the next check before the program can use up ``left`` bytes."""
        self._pause_s = min(self._pause_s, max(_LEAST_S, self._seconds_to_fill(left)))

    def _seconds_to_fill(self, left: int) -> float:
        processors: int = min(_PROCESSORS, self._processes)
        return left / (_BYTES_PER_S * processors)

    def _ending_memory(self, used: dict[int, usage.Usage]) -> int:
        """Bytes of memory that ending processes can still hold: their growth between checks.

        The memory that they had at the first check can be shared with other processes.
        """
        last, self._held = self._held, {}
        total = 0
        for pid, one in used.items():
            first, then = last.get(pid, (one.resident, one.resident))
            self._held[pid] = first, then if one.ending else one.resident
            total += max(0, then - first) if one.ending else 0
        return total

    def _disk_trouble(self, entries: list[int], maps: dict[int, bytes]) -> str:
        if self._files is None:
            return ""
        self.reason = self._files.trouble(entries, maps, stopped=self._stopped)
        self._check_before(self._files.left)
        return "killed" if self.reason else ""

    def _adjust_priority(self, used: dict[int, usage.Usage]) -> None:
        """Raise the niceness of a run's threads so that together they weigh as much as one thread.

        A run that keeps its maximum number of processes busy, and more than there are processors,
        acts like a fork bomb and gets only the processor time that other runs leave. If processors
        are idle, the run is not slowed down. The change is permanent: lowering niceness needs
        privileges.
        """
        if self._first_nice is None:
            self._first_nice = min((one.nice for one in used.values()), default=0)
        running = sum(len(one.running) for one in used.values())
        steady, self._running = min(running, self._running), running  # ignores short peaks
        if steady >= self._processes and steady > _PROCESSORS:
            self._bomb = True
        if self._bomb and not self._child.shares_little and self._proc_fd >= 0:
            with contextlib.suppress(OSError):  # the next check tries again
                kernel_limits.set_share(self._proc_fd, self._child.pid, _MAX_NICE)
                self._child.shares_little = True
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


class _SharedMemory:
    """Measures the memory that the resident sizes of a run's processes count more than once."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        """Processor seconds that the last call of ``counted_twice`` took."""
        self._bytes = 0
        self._next = 0.0

    def counted_twice(self, used: dict[int, usage.Usage], beyond: int, *, stopped: bool) -> int:
        """Bytes by which the sum of the resident sizes exceeds what the processes hold together.

        An exact measurement takes several times as long as a check. While the last measurement
        shows that the run is within the limit, the next measurement waits so long that measurements
        use at most an eighth of a core.

        Args:
            used: usage of each process.
            beyond: bytes by which the sum of the resident sizes exceeds the limit. If this is not
                positive, the result does not matter and is 0.
            stopped: whether the processes are stopped.
        """
        self.spent_s = 0.0
        if beyond <= 0:
            return 0
        if self._bytes >= beyond and time.monotonic() < self._next and not stopped:
            return self._bytes
        before = time.thread_time()
        self._bytes = 0
        for one in used.values():
            self._bytes += one.resident
            with contextlib.suppress(OSError):  # the process has ended
                self._bytes -= usage.proportional(one.entry)
        self.spent_s = time.thread_time() - before
        self._next = time.monotonic() + self.spent_s * (_SHARE - 1)
        return self._bytes


class _Files:
    """Measures the files of a run that has no private file system.

    Args:
        folder: the run's folder.
        limit: bytes that the files may have on disk.
        processes: the run's limit of processes.
        members: lists the run's processes.
    """

    def __init__(
        self, folder: str, limit: int, processes: int, members: Callable[[], list[int]]
    ) -> None:
        self.left = limit
        """Bytes that the run was still allowed to write at the last measurement."""
        self.spent_s = 0.0
        """Processor seconds that the last call of ``trouble`` took."""
        self._folder = folder
        self._limit = limit
        self._processes = processes
        self._members = members
        self._next = 0.0
        self._free = self._seen = free_bytes(folder)
        """Free bytes of the file system at the last measurement, and at the last call of
        ``trouble``."""
        self._lost = 0
        """Sum of all decreases of the file system's free bytes since the start."""
        self.slow = False
        """Whether the last measurement took long."""

    def room(self) -> int:
        """Bytes that the run can still write, if only it has written since the last measurement."""
        return self.left - (self._free - free_bytes(self._folder))

    def trouble(self, entries: list[int], maps: dict[int, bytes], *, stopped: bool) -> str:
        """Measure the files if this is due. Returns a description of the exceeded limit, or "".

        A folder with very many files can be measured only rarely. Between measurements, the
        decrease of the file system's free bytes is an upper bound of the bytes that the run has
        written.

        Args:
            entries: the run's processes.
            maps: the result of ``mappings.read``.
            stopped: whether the processes are stopped.
        """
        self.spent_s = 0.0
        free = free_bytes(self._folder)
        self._lost += max(0, self._seen - free)
        self._seen = free
        full = self._free - free > self.left
        if time.monotonic() < self._next and not stopped and not full:
            return ""
        before = time.thread_time()
        self._free = free
        # Stopping is visible to the program, so it is left out while the run can hide little.
        pause = not stopped and (free == 0 or self._lost > self._limit // 2)
        size, count, certain = 0, 0, False
        if not (pause and (full or self.slow)):
            size, count, certain = self._measure(entries, maps)
        if pause and not certain:
            with processes.paused(self._members) as members:
                entries = usage.entries(members)
                maps = mappings.read(entries, self._processes)
                size, count, _ = self._measure(entries, maps)
        self.left = self._limit - size
        self.spent_s = time.thread_time() - before
        self.slow = self.spent_s > _LEAST_S
        self._next = time.monotonic() + self.spent_s * (_SHARE - 1)
        if size > self._limit:
            return f"files exceed {self._limit >> 20} MiB"
        return f"more than {MAX_FILES} files" if count > MAX_FILES else ""

    def _measure(self, entries: list[int], maps: dict[int, bytes]) -> tuple[int, int, bool]:
        """Bytes and number of the files, and whether it is certain that no file was missed."""
        size, count, certain = disk_use(self._folder)
        unnamed = mappings.deleted(maps, self._folder, self._limit)
        unnamed |= usage.deleted_files(entries, self._folder)
        return size + sum(unnamed.values()), count, certain and not unnamed
