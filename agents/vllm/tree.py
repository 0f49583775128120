"""A process with all below it, as one thing to end.

As a program of its own it is a guard: it reads processes, one a line, until whoever started it is
gone, however that came, and then ends them.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tree:
    """The process ``pid`` that began at ``born``, in clock ticks: numbers are given again."""

    pid: int
    born: int

    @classmethod
    def of(cls, pid: int) -> Tree:
        """The one that has this number now; ``born`` is -1 where there is none."""
        return cls(pid, _born(pid))

    @property
    def exists(self) -> bool:
        """Whether it is there, and no zombie."""
        return self.born == _born(self.pid) != -1

    def members(self) -> list[Tree]:
        """It and every process below it."""
        return [Tree.of(pid) for pid in (self.pid, *_below(self.pid))] if self.exists else []

    def kill(self) -> list[Tree]:
        """Kill all of it; returns what it was."""
        members = self.members()
        for member in members:
            if member.exists:
                try:
                    os.kill(member.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return members


def _born(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])


def _below(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return [one for child in found for one in (child, *_below(child))]


def _guard() -> None:
    trees = [Tree(*map(int, line.split())) for line in sys.stdin]
    for tree in trees:
        tree.kill()


if __name__ == "__main__":
    _guard()
