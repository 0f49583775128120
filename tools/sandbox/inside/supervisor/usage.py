"""Reads from /proc how much memory and processor time processes use."""

# Plain os calls: this code runs every 25 ms beside each program.
# ruff: noqa: PTH115, PTH116, PTH208

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

from tools.sandbox.inside import procfs

_PAGE = os.sysconf("SC_PAGESIZE")
_CLOCK = os.sysconf("SC_CLK_TCK")
_DEAD = (b"Z", b"X", b"")
_SWITCHES = (b"voluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")
_FEW = 8
"""Maximum number of descriptors of a process whose sockets and pipes are not counted."""
_PIPE = 64 << 10
"""Number of bytes that a pipe holds. The system-call filter prevents other sizes."""


class HiddenError(Exception):
    """Raised for a process that this process is not allowed to inspect."""


class Usage(NamedTuple):
    """What one process uses."""

    entry: int
    """The process's entry in /proc: the process id or, if the first thread has ended, the id of a
    living thread. The entry of an ended first thread is empty."""

    ending: bool
    """Whether the process is freeing its memory. /proc then no longer shows the memory that is
    left."""
    resident: int
    """Bytes of memory, including shared and swapped-out memory."""
    tables: int
    """Number of bytes of page tables. They can exceed the memory that they map, because a page far
    from all other pages needs a table of 4 KiB, and a second table above it."""
    cpu_s: float
    """Processor seconds of the process and of its reaped children."""
    children_s: float
    """Processor seconds of the process's reaped children."""
    nice: int
    running: tuple[int, ...]
    """Ids of the threads that run or wait for a processor."""


def of(pid: int) -> Usage:
    """Read what process ``pid`` uses.

    Raises:
        OSError: the process has ended.
    """
    fields, entry = _stat(f"/proc/{pid}/stat"), pid
    if fields[0] == b"Z" and fields[17] != b"1":
        entry = next((task for task in tasks(pid) if _state(pid, task) not in _DEAD), pid)
        fields = _stat(f"/proc/{entry}/stat")
    status = procfs.read(f"/proc/{entry}/status")
    ending = fields[0] not in _DEAD and b"\nVmPTE:" not in status
    resident = int(fields[21]) * _PAGE + _bytes(status, b"\nVmSwap:")
    tables = _bytes(status, b"\nVmPTE:")
    running: tuple[int, ...] = (pid,) if fields[0] == b"R" else ()
    if fields[17] != b"1":
        running = tuple(task for task in tasks(pid) if _runs(pid, task))
    cpu_s, children_s = (sum(map(int, fields[start:15])) / _CLOCK for start in (11, 13))
    return Usage(entry, ending, resident, tables, cpu_s, children_s, int(fields[16]), running)


def entries(members: Iterable[int]) -> list[int]:
    """The entries in /proc (see ``Usage.entry``) of those processes that have not ended."""
    found = []
    for pid in members:
        with contextlib.suppress(OSError):
            found.append(of(pid).entry)
    return found


def _bytes(status: bytes, line: bytes) -> int:
    """A size in /proc/PID/status, or 0 for a process without memory."""
    at = status.find(line)
    if at < 0:
        return 0
    return int(status[at + len(line) : status.index(b"kB", at)]) * 1024


def tasks(pid: int) -> list[int]:
    """The threads of a process.

    Raises:
        OSError: the process has ended.
    """
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def progress(pid: int) -> dict[int, tuple[int, int]]:
    """Progress of those threads of a process that run, or that wait interruptibly.

    A thread's progress is its ticks of processor time and its number of context switches. Both
    numbers change only when the thread gets a processor.

    Raises:
        OSError: the process has ended.
    """
    found: dict[int, tuple[int, int]] = {}
    for task in tasks(pid):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = _stat(f"/proc/{pid}/task/{task}/stat")
            if fields[0] in (b"R", b"S"):
                status = procfs.read(f"/proc/{pid}/task/{task}/status")
                lines = [line for line in status.splitlines() if line.startswith(_SWITCHES)]
                switches = sum(int(line.split()[1]) for line in lines)
                found[task] = int(fields[11]) + int(fields[12]), switches
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    return _state(pid, pid) == b"T"


def _runs(pid: int, task: int) -> bool:
    return _state(pid, task) == b"R"


def _state(pid: int, task: int) -> bytes:
    try:
        return _stat(f"/proc/{pid}/task/{task}/stat")[0]
    except OSError:
        return b""


def _stat(path: str) -> list[bytes]:
    """The fields of a stat file from the third on.

    The second is a name that the program chooses.
    """
    data = procfs.read(path)
    return data[data.rindex(b")") + 2 :].split()


def proportional(pid: int) -> int:
    """Bytes of memory of a process. A page that n processes share counts as 1/n page.

    Raises:
        OSError: the process has ended.
    """
    try:
        text = procfs.read(f"/proc/{pid}/smaps_rollup")
    except PermissionError:
        return of(pid).resident  # unreadable: the resident size counts in full
    lines = [line for line in text.splitlines() if line.startswith((b"Pss:", b"SwapPss:"))]
    return sum(int(line.split()[1]) for line in lines) * 1024


def buffers(members: Iterable[int]) -> int:
    """Maximum bytes of kernel memory that the sockets and pipes of processes can hold.

    Raises:
        HiddenError: a process cannot be inspected.
    """
    found: set[str] = set()
    for pid in members:
        descriptors = _descriptors(pid)
        if len(descriptors) > _FEW:
            found |= {name for _, name in descriptors}
    sockets = sum(name.startswith("socket:") for name in found)
    size = _PIPE * sum(name.startswith("pipe:") for name in found)
    if not sockets:
        return size
    one, other = socket.socketpair()
    with one, other:
        return size + sockets * one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def deleted_files(members: Iterable[int], folder: str) -> dict[int, int]:
    """For each open file that was deleted from ``folder``: its bytes on disk, by inode.

    Raises:
        HiddenError: a process cannot be inspected.
    """
    held: dict[int, int] = {}
    for pid in members:
        for fd, name in _descriptors(pid):
            if name.startswith(folder):
                try:
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                except OSError:
                    continue
                if status.st_nlink == 0:
                    held[status.st_ino] = status.st_blocks * 512
    return held


def _descriptors(pid: int) -> list[tuple[str, str]]:
    """Number of each open descriptor of a process, and the target of its link in /proc."""
    found = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        if has_memory(pid):
            raise HiddenError from None
        return []  # the process is ending
    except OSError:
        return []  # the process has ended
    for fd in numbers:
        with contextlib.suppress(OSError):  # the descriptor was just closed
            found.append((fd, os.readlink(f"/proc/{pid}/fd/{fd}")))
    return found


def has_memory(pid: int) -> bool:
    """Whether the process still has memory. An ending process has none."""
    try:
        return int(_stat(f"/proc/{pid}/stat")[21]) > 0
    except OSError:
        return False


class UnreapedTime:
    """Counts the processor time of ended processes that no process reaped.

    This happens, for example, if a program ignores SIGCHLD.
    """

    def __init__(self) -> None:
        self._last: dict[int, Usage] = {}
        self._reaped_s = 0.0
        self._pending_s = 0.0
        self._total_s = 0.0

    def update(self, used: dict[int, Usage], reaped_s: float) -> float:
        """The total processor seconds of such processes, as of the check that measured ``used``.

        A process may be reaped between the measurements of itself and of its parent, so its time
        counts only if the next check does not find that time with the parent either.

        Args:
            used: usage of each process.
            reaped_s: processor seconds of the processes that the supervisor has reaped.
        """
        last = self._last
        # A process may also be missing because its parent ended while the list was made.
        alive = (pid for pid in last if pid not in used and _exists(pid))
        self._last = used | {pid: last[pid] for pid in alive}
        ended_s = sum(one.cpu_s for pid, one in last.items() if pid not in self._last)
        found_s = reaped_s - self._reaped_s
        self._reaped_s = reaped_s
        for pid, one in used.items():
            found_s += one.children_s - (last[pid].children_s if pid in last else 0.0)
        self._total_s += max(0.0, self._pending_s - max(0.0, found_s - ended_s))
        self._pending_s = max(0.0, ended_s - found_s)
        return self._total_s


def _exists(pid: int) -> bool:
    # A plain os call, because checks are frequent.
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110
