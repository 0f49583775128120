"""One rank's process as the run sees it, wherever it runs, and its start on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

CLOSE_S = 5.0
"""Seconds after which a rank that does not end is killed."""


class RankProcess(Protocol):
    """The process of one rank."""

    number: int
    """The rank, from 0."""
    pid: int
    """Its process id on its machine."""
    connection: Connection[Any, Any]
    """Carries calls to the rank, and its answers. It closes when either side ends."""

    def kill(self) -> None:
        """End the process and its connection at once, without waiting for the end."""
        ...

    def wait(self) -> None:
        """Wait for the end of the process, and kill it if it takes long."""
        ...

    def epitaph(self) -> str:
        """How the process ended, in one line."""
        ...


def _nothing() -> None:
    """Free nothing."""


@dataclass(frozen=True)
class RankGroup:
    """The started processes of a learner, which do not know each other yet."""

    ranks: Sequence[RankProcess]
    rendezvous: str
    """Where the ranks find each other, as ``torch.distributed.init_process_group`` takes it."""
    devices: Sequence[int]
    """The number of each rank's GPU, among those that its process sees."""
    shares_files: bool
    """Whether rank 0 and this process see the same folder in memory."""
    num_threads: int = 0
    """Number of threads of a rank on a CPU; 0 for its share of the run's threads."""
    free: Callable[[], None] = _nothing
    """Called after the processes have ended."""


def start_here(size: int) -> RankGroup:
    """Start ``size`` ranks on this machine. On GPUs, rank ``i`` has the GPU with number ``i``."""
    folder = Path(tempfile.mkdtemp(prefix="turnwise-ranks-"))
    return RankGroup(
        ranks=[_LocalRank(rank, folder) for rank in range(size)],
        rendezvous=f"file://{folder / 'rendezvous'}",
        devices=range(size),
        shares_files=True,
        free=partial(shutil.rmtree, folder, ignore_errors=True),
    )


class _LocalRank:
    """A rank on this machine, and the socket to it."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self._printed = folder / f"rank-{number}.log"
        ours, theirs = socket.socketpair()
        environment = os.environ | {
            # What this process can import, its ranks can import.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        # The ranks are on this machine, whatever its host name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-m", "rl.learner.ranks.rank", str(theirs.fileno())]
        with self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                # Ctrl-C is for the run, which then closes its ranks.
                start_new_session=True,
            )
        theirs.close()
        self.pid = self.process.pid
        self.connection: Connection[Any, Any] = Connection(ours.detach())

    def kill(self) -> None:
        """End the process at once, without waiting for its end."""
        self.process.kill()

    def wait(self) -> None:
        """Wait for the end of the process, and kill it if it takes long."""
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def epitaph(self) -> str:
        """How the process ended, in one line."""
        code = self.process.poll()
        line = f"rank {self.number} of the learner ended with exit code {code}"
        if code is None or code < 0:
            return line  # A signal ended it, whatever it printed before.
        try:
            with self._printed.open(errors="replace") as printed:
                last = deque((text.strip() for text in printed if text.strip()), maxlen=1)
        except OSError:
            return line
        return f"{line}: {last[0]}" if last else line
