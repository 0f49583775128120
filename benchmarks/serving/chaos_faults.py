"""Faults injected into a training process from outside, and checks for leftovers; Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SERVER = ("vllm.entrypoints", "VLLM")
"""The command lines of a vLLM server's processes contain one of these."""
_PIDFD_GETFD = 438
_ESTABLISHED = "01"
_LOOPBACK = "0100007F"
_LOOK_S = 0.25


class Refused(Exception):
    """Raised when this machine does not let a fault be made."""


def children(pid: int, but: Collection[int] = ()) -> Iterator[int]:
    """The processes below ``pid``, a parent before its children; without ``but`` and its own."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                if child not in but:
                    yield child
                    yield from children(child, but)


def born(pid: int) -> int:
    """Start time of a process; with the id it identifies the process. 0: the process is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def servers_of(trainer: int) -> list[int]:
    """The processes of a trainer's vLLM servers: front ends, engines, workers."""
    found = []
    for pid in children(trainer):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if any(name in words for name in SERVER):
                found.append(pid)
    return found


class Census:
    """Notes every process below this one that begins, and the shared memory that it maps.

    Processes of another network, as of a far machine, do not count.
    """

    def __init__(self) -> None:
        self._others = set(children(os.getpid()))
        self._processes: dict[int, int] = {}
        self._memory: set[str] = set()
        """Inodes."""
        self._open = True
        self._thread = threading.Thread(target=self._look_often, daemon=True)
        self._thread.start()

    def left(self, within_s: float) -> dict[str, list[str]]:
        """Wait up to ``within_s`` seconds; return the recorded resources that still exist."""
        end = time.monotonic() + within_s
        while any((found := self._left()).values()) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return found

    def close(self) -> None:
        """Look no more."""
        self._open = False
        self._thread.join()

    def _left(self) -> dict[str, list[str]]:
        alive = [
            pid
            for pid, since in list(self._processes.items())
            if born(pid) == since and _network(pid) == _network(os.getpid())
        ]
        named = {str(path.stat().st_ino): path.name for path in _files(SHARED_MEMORY)}
        memory = [name for inode, name in named.items() if inode in self._memory]
        return {"processes": [_called(pid) for pid in alive], "shared memory": sorted(memory)}

    def _look_often(self) -> None:
        while self._open:
            for pid in list(children(os.getpid(), self._others)):
                if since := born(pid):
                    self._processes[pid] = since
                with contextlib.suppress(OSError):
                    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                        if str(SHARED_MEMORY) in line:
                            self._memory.add(line.split()[4])
            time.sleep(_LOOK_S)


def _network(pid: int) -> str:
    """The name of a process's network, empty if the process is gone."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _called(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{pid} {words.decode(errors='replace')[:120].strip()}"
    return str(pid)


class Disk:
    """A file system of its own for a run's folder, which can be filled.

    If no disk can be mounted, a limit on the size of the run's files replaces it.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
        done = subprocess.run(words, capture_output=True, check=False)
        self.mounted = done.returncode == 0

    def fill(self, trainer: int) -> str:
        """No byte more can be written by ``trainer``; says how."""
        if not self.mounted:
            hard = resource.prlimit(trainer, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(trainer, resource.RLIMIT_FSIZE, (0, hard))
            return "its files may not grow"
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", 0) as file:
            while True:
                file.write(bytes(2**16))
        with contextlib.suppress(OSError), (self.folder / "filler").open("ab", 0) as file:
            while True:
                file.write(b"0")
        return "the file system is full"

    def free(self) -> None:
        """Free the disk for processes that start now."""
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Give it back, with all that is on it."""
        if self.mounted:
            # Weights that were read from there may still be mapped.
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def kill_server(trainer: int, rng: random.Random) -> str:
    """SIGKILL to one process of a server, whichever."""
    return signalled(servers_of(trainer), rng, signal.SIGKILL)


def hang_server(trainer: int, rng: random.Random) -> str:
    """SIGSTOP to one process of a server, whichever."""
    return signalled(servers_of(trainer), rng, signal.SIGSTOP)


def signalled(victims: Sequence[int], rng: random.Random, number: signal.Signals) -> str:
    """Send a signal to one of the processes; says which."""
    victim = rng.choice(victims)
    called = _called(victim)
    os.kill(victim, number)
    # Not where its interpreter lies: that is of one machine.
    program, _, words = called.split(" ", 1)[-1].partition(" ")
    return f"{number.name} to {Path(program).name} {words}"[:60].strip()


def cut_connections(trainer: int, rng: random.Random, within_s: float = 30.0) -> str:
    """Shut down every connection of ``trainer`` to this machine, as soon as it has one.

    Raises:
        Refused: this machine does not let another process's sockets be reached.
    """
    end = time.monotonic() + within_s
    cut = 0
    while not cut and time.monotonic() < end:
        for descriptor in _connections(trainer):
            cut += _shut_down(trainer, descriptor)
        time.sleep(0.005 + rng.random() * 0.05)
    return f"{cut} connections"


def _connections(pid: int) -> list[int]:
    """The process's descriptors that are connections to this machine."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED and fields[2].startswith(_LOOPBACK):
            inodes.add(f"socket:[{fields[9]}]")
    found = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(path.readlink()) in inodes:
                    found.append(int(path.name))
    return found


def _shut_down(pid: int, descriptor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        copy = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            if (error := ctypes.get_errno()) in (1, 38):
                raise Refused(f"pidfd_getfd is refused: {os.strerror(error)}")
            return 0  # It was closed meanwhile.
    finally:
        os.close(process)
    with socket.socket(fileno=copy) as connection:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return 0
    return 1
