"""The processes of this machine, as tests ask for them: by parent and by name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """The direct children of ``pid``, or of this process; of a dead one there are none."""
    found: list[int] = []
    # A process may end between any two of these reads.
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def below(pid: int | None = None) -> list[int]:
    """Every process below ``pid``, or below this one, a parent before its children."""
    return [one for child in children(pid) for one in (child, *below(child))]


def alive(pid: int) -> bool:
    """A zombie is dead: some machines' process 1 takes its time to bury orphans."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def called(name: str) -> list[int]:
    """The living processes of this machine that call themselves ``name``."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            named = process.name.isdigit() and (process / "comm").read_text().strip() == name
            if named and alive(int(process.name)):
                found.append(int(process.name))
    return found
