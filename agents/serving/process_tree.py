"""A process and all its descendants, killed together.

Run as a program, this file is a guard. It reads processes from its input, one per line. When the
input ends, because the parent ended or was killed, the guard kills these processes.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tree:
    """A process, identified by ``pid`` and its start time ``born`` in clock ticks.

    The id alone is not enough, because the system reuses ids.
    """

    pid: int
    born: int

    @classmethod
    def of(cls, pid: int) -> Tree:
        """The process that has this id now. ``born`` is -1 if no process has this id."""
        return cls(pid, _born(pid))

    @property
    def exists(self) -> bool:
        """Whether the process is alive. A zombie is not."""
        return self.born == _born(self.pid) != -1

    def members(self) -> list[Tree]:
        """The process and all its descendants."""
        return [Tree.of(pid) for pid in (self.pid, *_below(self.pid))] if self.exists else []

    def kill(self) -> list[Tree]:
        """Kill the process and all its descendants, and return them."""
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
