"""Processes of this machine, by parent and by name."""

from __future__ import annotations

import contextlib
import os
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """Direct children of ``pid``, or of this process; none if ``pid`` is dead.

    The processes that multiprocessing and the adapter of reasoning-gym keep for this process are
    left out.
    """
    found: list[int] = []
    # A process may end between any two of these reads.
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    # Other tests of this worker have started them.
    kept = [forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid]
    adapter = sys.modules.get("envs.adapters.reasoning_gym")
    if adapter is not None and adapter._drawing._process is not None:
        kept.append(adapter._drawing._process.pid)
    return [one for one in found if one not in kept]


def below(pid: int | None = None) -> list[int]:
    """All descendants of ``pid``, or of this process, each parent before its children."""
    return [one for child in children(pid) for one in (child, *below(child))]


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not: some machines' process 1 reaps orphans slowly."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def called(name: str) -> list[int]:
    """Running processes of this machine with the name ``name``."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            named = process.name.isdigit() and (process / "comm").read_text().strip() == name
            if named and alive(int(process.name)):
                found.append(int(process.name))
    return found
