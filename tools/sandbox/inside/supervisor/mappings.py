"""Measures memory mappings from /proc: anonymous shared memory, deleted files, and their number.

A page of shared memory stays allocated while any process maps any part of the memory object, and
can be missing from every process's resident size. An unprivileged user cannot read an object's
size, so each object counts with its largest possible size.
"""

# Plain os calls: this code runs every 25 ms beside each program.
# ruff: noqa: PTH116

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from tools.sandbox.inside import procfs
from tools.sandbox.inside.supervisor import usage

SHARED_PIECE = 8 << 20
"""Bytes of the largest anonymous shared mapping that the system-call filter allows. Each such
mapping counts with at least this size."""
_RECORD = 512
"""Number of bytes of kernel memory that each mapping takes."""
_TEXT, _TEXT_OF_PROCESS = 1 << 19, 1 << 15
"""Maximum number of bytes of ``/proc/PID/maps`` for all processes of a run: a fixed number, and a
number for each process that the run is allowed to have. A plain interpreter has 6 KiB."""
_ANONYMOUS = b"/dev/zero (deleted)"
_DELETED = b" (deleted)"


class TooManyError(Exception):
    """Raised for a run that has too many mappings to count in time."""


def read(members: Iterable[int], processes: int) -> dict[int, bytes]:
    """The texts of ``/proc/PID/maps``, by process.

    Args:
        members: the processes of a run.
        processes: the run's limit of processes.

    Raises:
        TooManyError: the texts are too long to read in time.
        usage.HiddenError: a process cannot be inspected.
    """
    room = _TEXT + processes * _TEXT_OF_PROCESS
    texts: dict[int, bytes] = {}
    for pid in members:
        try:
            texts[pid] = procfs.read(f"/proc/{pid}/maps", room)
        except PermissionError:
            if usage.has_memory(pid):
                raise usage.HiddenError from None
        except OSError:
            continue  # the process has ended
        else:
            room -= len(texts[pid])
            if room <= 0:
                raise TooManyError
    return texts


def kernel_memory(texts: Mapping[int, bytes]) -> int:
    """Sum of the bytes of anonymous shared memory and of the kernel's records of all mappings."""
    sizes: dict[int, int] = {}
    for text in texts.values():
        for _, extent, inode in _lines(text, _ANONYMOUS):
            sizes[inode] = max(extent, sizes.get(inode, SHARED_PIECE))
    return sum(sizes.values()) + _RECORD * sum(text.count(b"\n") for text in texts.values())


def deleted(texts: Mapping[int, bytes], folder: str, largest: int) -> dict[int, int]:
    """For each mapped file that was deleted from ``folder``: its bytes on disk, by inode.

    Args:
        texts: the result of ``read``.
        folder: the folder of the run.
        largest: size to assume for a file whose size this process is not allowed to read.
    """
    sizes: dict[int, int] = {}
    for pid, text in texts.items():
        if folder.encode() not in text:
            continue
        for span, _, inode in _lines(text, _DELETED, folder.encode()):
            if inode not in sizes:
                try:
                    sizes[inode] = os.stat(f"/proc/{pid}/map_files/{span}").st_blocks * 512
                except OSError:
                    sizes[inode] = largest
    return sizes


def _lines(text: bytes, ending: bytes, within: bytes = b"") -> Iterator[tuple[str, int, int]]:
    """Address range, end offset in the mapped object, and inode of each matching mapping."""
    if ending not in text:
        return
    for line in text.splitlines():
        if line.endswith(ending) and within in line:
            span, _, offset, _, inode, _ = line.split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split(b"-"))
            yield span.decode(), int(offset, 16) + end - start, int(inode)
