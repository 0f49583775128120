"""What processes map, as /proc tells it: how much, what is shared without a name, what is deleted.

A shared page stays while any process maps any part of its object, and it may be missing from every
resident size. An ordinary user cannot ask for an object's size, so each object counts as the most
that it can be.
"""

# Plain os calls: these lines run every 25 ms beside each program.
# ruff: noqa: PTH116, PTH123

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from tools.sandbox.inside import usage

SHARED_PIECE = 8 << 20
"""Bytes that one mapping may share without a name, by the filter of system calls, and as which each
of them counts."""
_RECORD = 512
"""Bytes of the kernel's own memory for each mapping."""
_TEXT, _TEXT_OF_PROCESS = 1 << 19, 1 << 15
"""Bytes of what /proc says of the mappings of a run, and more for each process that it may have.
A plain interpreter has 6 KiB of it."""
_NAMELESS = b"/dev/zero (deleted)"
_DELETED = b" (deleted)"


class TooManyError(Exception):
    """Raised for a run with so many mappings that looks at it would be rare."""


def read(members: Iterable[int], processes: int) -> dict[int, bytes]:
    """What /proc says of the mappings of each process that has any.

    Args:
        members: the processes of a run.
        processes: that it may have.

    Raises:
        TooManyError: it says more than can be read in time.
        usage.HiddenError: one of them cannot be seen.
    """
    room = _TEXT + processes * _TEXT_OF_PROCESS
    texts: dict[int, bytes] = {}
    for pid in members:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                texts[pid] = file.read(room)
        except PermissionError:
            if usage.has_memory(pid):
                raise usage.HiddenError from None
        except OSError:
            continue  # it has ended
        else:
            room -= len(texts[pid])
            if room <= 0:
                raise TooManyError
    return texts


def kernel_memory(texts: Mapping[int, bytes]) -> int:
    """Bytes of what is shared without a name, and of the descriptions of all mappings."""
    sizes: dict[int, int] = {}
    for text in texts.values():
        for _, extent, inode in _lines(text, _NAMELESS):
            sizes[inode] = max(extent, sizes.get(inode, SHARED_PIECE))
    return sum(sizes.values()) + _RECORD * sum(text.count(b"\n") for text in texts.values())


def deleted(texts: Mapping[int, bytes], folder: str, largest: int) -> dict[int, int]:
    """Bytes on disk of deleted files of ``folder`` that are mapped, by their inodes.

    Args:
        texts: as ``read`` gives them.
        folder: where they had their names.
        largest: what counts for one that this process may not ask about: the size of a file.
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
    """Where a thing is mapped, how far into it that reaches, and its inode."""
    if ending not in text:
        return
    for line in text.splitlines():
        if line.endswith(ending) and within in line:
            span, _, offset, _, inode, _ = line.split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split(b"-"))
            yield span.decode(), int(offset, 16) + end - start, int(inode)
