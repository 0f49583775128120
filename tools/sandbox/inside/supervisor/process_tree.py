"""Lists processes from /proc: children, descendants, and all processes of a pid namespace."""

# Plain os calls: this code runs every 25 ms beside each program.
# ruff: noqa: PTH208

from __future__ import annotations

import os

from tools.sandbox.inside import procfs


def namespace_members() -> list[int]:
    """Every process of this pid namespace except process 1."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def descendants(root: int | None = None) -> list[int]:
    """Every living or unreaped descendant of ``root`` or, by default, of this process."""
    found: list[int] = []
    pending = [os.getpid() if root is None else root]
    while pending:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def children(pid: int) -> list[int]:
    """The living or unreaped children of a process. Empty if the process is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, procfs.read(f"/proc/{pid}/task/{task}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
