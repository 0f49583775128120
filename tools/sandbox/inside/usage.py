"""What processes use, as /proc tells it."""

# Plain os calls: these lines run every 25 ms beside each program.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGESIZE")
_CLOCK = os.sysconf("SC_CLK_TCK")
_DEAD = (b"Z", b"X", b"")
_SWITCHES = (b"voluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")
_FEW = 8
"""Descriptors of a process that are not looked at one by one."""
_PIPE = 64 << 10
"""Bytes that a pipe holds; the filter keeps it so."""


class HiddenError(Exception):
    """Raised for a process that nobody may look into."""


class Usage(NamedTuple):
    """What one process uses."""

    entry: int
    """Where it shows in /proc: its number, or, once its first thread has ended, a living thread's.
    The entry of the first one is empty then."""

    ending: bool
    """Whether it gives its memory back: what is left of that shows no more."""
    resident: int
    """Bytes of memory, those that it shares with others, and those swapped out, included."""
    tables: int
    """Bytes of its page tables. They can outgrow what they describe: a table of 4 KiB, and another
    above it, for each page that lies alone."""
    cpu_s: float
    """Seconds of its own, and of those children that it has waited for."""
    nice: int
    running: tuple[int, ...]
    """Its threads that have, or want, a processor."""


def of(pid: int) -> Usage:
    """What process ``pid`` uses.

    Raises:
        OSError: it has ended.
    """
    fields, entry = _stat(f"/proc/{pid}/stat"), pid
    if fields[0] == b"Z" and fields[17] != b"1":
        entry = next((task for task in tasks(pid) if _state(pid, task) not in _DEAD), pid)
        fields = _stat(f"/proc/{entry}/stat")
    with open(f"/proc/{entry}/status", "rb") as file:
        status = file.read()
    ending = fields[0] not in _DEAD and b"\nVmPTE:" not in status
    resident = int(fields[21]) * _PAGE + _bytes(status, b"\nVmSwap:")
    tables = _bytes(status, b"\nVmPTE:")
    running: tuple[int, ...] = (pid,) if fields[0] == b"R" else ()
    if fields[17] != b"1":
        running = tuple(task for task in tasks(pid) if _runs(pid, task))
    cpu_s = sum(map(int, fields[11:15])) / _CLOCK
    return Usage(entry, ending, resident, tables, cpu_s, int(fields[16]), running)


def _bytes(status: bytes, line: bytes) -> int:
    """A size in /proc/PID/status; a process without memory has none."""
    at = status.find(line)
    if at < 0:
        return 0
    return int(status[at + len(line) : status.index(b"kB", at)]) * 1024


def tasks(pid: int) -> list[int]:
    """The threads of a process.

    Raises:
        OSError: it has ended.
    """
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def progress(pid: int) -> dict[int, tuple[int, int]]:
    """How far the threads of a process are that run, or wait for what would make them run.

    Both numbers of a thread stay as they are until it has a processor again: ticks of processor
    time, and how often it gave a processor up.

    Raises:
        OSError: it has ended.
    """
    found: dict[int, tuple[int, int]] = {}
    for task in tasks(pid):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = _stat(f"/proc/{pid}/task/{task}/stat")
            if fields[0] in (b"R", b"S"):
                with open(f"/proc/{pid}/task/{task}/status", "rb") as file:
                    lines = [line for line in file if line.startswith(_SWITCHES)]
                switches = sum(int(line.split()[1]) for line in lines)
                found[task] = int(fields[11]) + int(fields[12]), switches
    return found


def _runs(pid: int, task: int) -> bool:
    return _state(pid, task) == b"R"


def _state(pid: int, task: int) -> bytes:
    try:
        return _stat(f"/proc/{pid}/task/{task}/stat")[0]
    except OSError:
        return b""


def _stat(path: str) -> list[bytes]:
    """The fields from the third on: before them stands a name that the program chooses."""
    with open(path, "rb") as file:
        data = file.read()
    return data[data.rindex(b")") + 2 :].split()


def proportional(pid: int) -> int:
    """Bytes of memory, each page divided by how many share it.

    Raises:
        OSError: it has ended.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = [line for line in file if line.startswith((b"Pss:", b"SwapPss:"))]
    except PermissionError:
        return of(pid).resident  # it cannot be read: its resident size counts in full
    return sum(int(line.split()[1]) for line in lines) * 1024


def buffers(members: Iterable[int]) -> int:
    """Bytes of kernel memory that the sockets and pipes of processes can hold, full or not.

    Raises:
        HiddenError: one of them cannot be seen.
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
    """Bytes on disk of files that had their names in ``folder`` and are held open, by inode.

    Raises:
        HiddenError: one of them cannot be seen.
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
    """Number and name of what is open."""
    found = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        if has_memory(pid):
            raise HiddenError from None
        return []  # it is ending
    except OSError:
        return []  # it has ended
    for fd in numbers:
        with contextlib.suppress(OSError):  # it was closed just now
            found.append((fd, os.readlink(f"/proc/{pid}/fd/{fd}")))
    return found


def has_memory(pid: int) -> bool:
    """Whether it is a process that has not ended."""
    try:
        return int(_stat(f"/proc/{pid}/stat")[21]) > 0
    except OSError:
        return False
