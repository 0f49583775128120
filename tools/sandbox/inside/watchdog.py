"""Limits that no kernel limit covers without cgroups: what a run uses in total."""

# Plain os calls: these lines run every 25 ms beside each program.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tools.sandbox.inside import mappings, usage
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.surroundings import MAX_FILES, Place

if TYPE_CHECKING:
    from tools.sandbox.inside.child import Child

_FIRST_S = 0.02
"""A program that ends before costs no look."""
_SHARE = 8
"""Ticks may use one part in so many of a core."""
_LEAST_S, MOST_S = 0.004, 0.025
"""Between looks, by what may still be used."""
_BYTES_PER_S = 4 << 30
"""Memory that a program fills in one second of processor time."""
_LONGEST_S = 0.25
"""The longest time between looks at a run that hardly computes."""
_WEIGHT_OF_NICE = 1.25
"""By so much one step of niceness divides a thread's share of a processor."""
_MAX_NICE = 19
_SCHEDULED = 2
"""Of the clocks of a process, the one that counts what the scheduler gave it; see
clock_getcpuclockid(3)."""
_NO_PRIORITY = os.sched_param(0)
_PROCESSORS = os.cpu_count() or 1


class Watchdog:
    """Looks at a run now and then and says when it uses too much.

    Args:
        config: settings of the generation.
        place: the run's folder.
        request: the run's limits.
        child: its first process.
        members: lists the run's processes; None: everything that this process has below it.
    """

    def __init__(
        self,
        config: Config,
        place: Place,
        request: dict[str, Any],
        child: Child,
        members: Callable[[], list[int]] | None = None,
    ) -> None:
        self.reason = ""
        everything = (
            _namespace_members if config.isolation == "namespaces" else lambda: descendants()
        )
        self._members = members or everything
        self._place = place
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
        """What each process held when it was first seen, and when it was last."""
        self._clocks = _processor_s([child.pid])
        """Seconds of processor time that each process had used at the last look, or at first."""
        self._looked = time.monotonic()
        self._next = self._looked + _FIRST_S
        self._pause_s = MOST_S

    @property
    def patience_s(self) -> float:
        """Seconds until the next look is due."""
        return min(MOST_S, max(_LEAST_S / 2, self._next - time.monotonic()))

    def tick(self, *, now: bool = False) -> str:
        """How the run must end, as a status with a ``reason``; "" when all is well.

        Args:
            now: look even if no look is due.
        """
        if not now and (time.monotonic() < self._next or self._rested()):
            return ""
        before = time.thread_time()  # on a busy machine a look takes long that costs little
        self._looked = time.monotonic()
        verdict = self._look()
        spent_s = (time.thread_time() - before) * (_SHARE - 1)
        self._next = time.monotonic() + max(self._pause_s, spent_s)
        return verdict

    def _rested(self) -> bool:
        """Whether the run has computed too little since the last look to use up what is left.

        A run takes memory, disk space and processes only while it computes. A look costs ten times
        as much as this check, so a run that waits for an answer or a processor gets fewer looks.
        """
        now = time.monotonic()
        if now - self._looked > _LONGEST_S:
            return False
        used = _processor_s(self._members())
        if used.keys() != self._clocks.keys():
            return False
        computed_s = sum(used.values()) - sum(self._clocks.values())
        self._next = now + self._pause_s
        return computed_s < self._pause_s / 2

    def out_of_memory(self) -> bool:
        """Whether the kernel, out of memory in the group, killed somebody since the start."""
        if self._group_kills() == self._kills:
            return False
        self.reason = "all runs together used up the memory of the sandbox"
        return True

    def _group_kills(self) -> int:
        if self._events < 0:
            return 0
        lines = os.pread(self._events, 4096, 0).splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))

    def _look(self) -> str:
        members = set(self._members())
        self._clocks = _processor_s(members)
        # The kernel's limit is exact only where a run has a user of its own.
        if len(members) > self._processes:
            self.reason = f"more than {self._processes} processes"
            return "killed"
        used: dict[int, usage.Usage] = {}
        for pid in members:
            with contextlib.suppress(OSError):  # it ended meanwhile
                used[pid] = usage.of(pid)
        cpu_s = self._child.cpu_s + sum(one.cpu_s for one in used.values())
        if cpu_s > self._cpu_s:
            self.reason = f"{cpu_s:.2f} s of processor time, {self._cpu_s:g} s allowed"
            return "timeout"
        self._weigh(used)
        try:
            entries = [one.entry for one in used.values()]
            maps = mappings.read(entries, self._processes)
            return self._memory_trouble(used, maps) or self._disk_trouble(entries, maps)
        except mappings.TooManyError:
            self.reason = "more mappings of memory than can be counted"
            return "memory"
        except usage.HiddenError:
            self.reason = "a process cannot be inspected: it runs a program that nobody may read"
            return "killed"

    def _memory_trouble(self, used: dict[int, usage.Usage], maps: dict[int, bytes]) -> str:
        rest = sum(one.tables for one in used.values()) + self._given_back(used)
        rest += usage.buffers(one.entry for one in used.values()) + mappings.kernel_memory(maps)
        # Pages shared with the zygote count in each process's resident size: the exact sum, which
        # is slower to get, decides.
        total = rest + sum(one.resident for one in used.values())
        if total > self._memory:
            total = rest
            for one in used.values():
                with contextlib.suppress(OSError):
                    total += usage.proportional(one.entry)
        self._pause_s = MOST_S
        self._hurry(self._memory - total)
        if total <= self._memory:
            return ""
        self.reason = f"{total >> 20} MiB in use, {self._memory >> 20} MiB allowed"
        return "memory"

    def _hurry(self, left: int) -> None:
        """Look again before the program can use up ``left`` bytes."""
        left_s = left / (_BYTES_PER_S * min(_PROCESSORS, self._processes))
        self._pause_s = min(self._pause_s, max(_LEAST_S, left_s))

    def _given_back(self, used: dict[int, usage.Usage]) -> int:
        """What ending processes may still hold: as much as they took while they were seen.

        What they held at first they may share with others.
        """
        last, self._held = self._held, {}
        total = 0
        for pid, one in used.items():
            first, then = last.get(pid, (one.resident, one.resident))
            self._held[pid] = first, then if one.ending else one.resident
            total += max(0, then - first) if one.ending else 0
        return total

    def _disk_trouble(self, entries: list[int], maps: dict[int, bytes]) -> str:
        if self._place.private:
            return ""
        size, count = _disk_use(self._place.folder)
        unnamed = mappings.deleted(maps, self._place.folder, self._disk)
        unnamed |= usage.deleted_files(entries, self._place.folder)
        size += sum(unnamed.values())
        self._hurry(self._disk - size)
        if size > self._disk:
            self.reason = f"files exceed {self._disk >> 20} MiB"
            return "killed"
        if count > MAX_FILES:
            self.reason = f"more than {MAX_FILES} files"
            return "killed"
        return ""

    def _weigh(self, used: dict[int, usage.Usage]) -> None:
        """Have the threads of a run, however many, weigh as much as one of another run.

        A run that keeps busy all that it may have, and more than there are processors, gets what
        others leave: that is what a fork bomb does, and nothing that anybody waits for. Nothing
        is slower for either while processors are free. It is for good: who made a process nicer
        may not, without rights, make it less nice.
        """
        if self._first_nice is None:
            self._first_nice = min((one.nice for one in used.values()), default=0)
        running = sum(len(one.running) for one in used.values())
        steady, self._running = min(running, self._running), running  # not for a moment's sake
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


def _processor_s(members: Iterable[int]) -> dict[int, float]:
    """Seconds of processor time that all threads of each process have used."""
    used: dict[int, float] = {}
    for pid in members:
        try:
            used[pid] = time.clock_gettime(~pid << 3 | _SCHEDULED)
        except OSError:
            used[pid] = (
                math.nan
            )  # The process has ended. No comparison with NaN is true: a look is due.
    return used


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
