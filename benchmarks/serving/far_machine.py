"""A Ray cluster of two machines: this one, without room, and one in namespaces of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_NETWORK = f"10.231.{os.getpid() % 256}"
HERE, THERE = f"{_NETWORK}.1", f"{_NETWORK}.2"
START_S = 90.0


class FarMachine:
    """A machine that shares the file system with this one, but neither the network nor memory.

    Args:
        folder: where Ray's daemons log.
        cpus: number of the far machine's cores. This machine has none, so Ray places all there.
        lost_soon: whether the machine counts as lost after some eight seconds without an answer. On
            two busy cores it may be silent for as long.
    """

    def __init__(self, folder: Path, cpus: int, *, lost_soon: bool = False) -> None:
        self._name = f"tw{os.getpid()}"
        self._ends = (f"twa{os.getpid()}", f"twb{os.getpid()}")
        self._folder, self._cpus = folder, cpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {"RAY_AUTH_MODE": "disabled"}
        if lost_soon:
            self.environment |= {
                "RAY_health_check_period_ms": "2000",
                "RAY_health_check_timeout_ms": "2000",
                "RAY_health_check_failure_threshold": "3",
            }
        self.address = ""
        self._ray: list[str] = []

    def __enter__(self) -> FarMachine:
        try:
            self._connect()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *ending: object) -> None:
        for daemon in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        for pid in self._inside():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "link", "delete", self._ends[0]], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self._name], check=False, capture_output=True)

    def cut(self) -> None:
        """Take the far machine off the network."""
        ip("link", "set", self._ends[0], "down")

    def heal(self) -> None:
        """Put the far machine on the network again."""
        ip("link", "set", self._ends[0], "up")

    def restart(self) -> None:
        """Start Ray there again, as a supervisor would: a machine that was lost does not return."""
        for pid in self._inside():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.pop().wait()
        self._start_there()

    def running(self, *names: str) -> list[int]:
        """Ids of the processes there whose command line contains one of the names."""
        found = []
        for pid in self._inside():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                if any(name in words for name in names):
                    found.append(pid)
        return found

    def shared_memory(self, pattern: str) -> list[str]:
        """Names of the matching files and folders in the machine's shared memory."""
        folder = Path(f"/proc/{self._inside()[-1]}/root/dev/shm")
        return sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))

    def _inside(self) -> list[int]:
        words = ["ip", "netns", "pids", self._name]
        found = subprocess.run(words, check=False, capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]

    def _connect(self) -> None:
        a, b = self._ends
        ip("netns", "add", self._name)
        ip("link", "add", a, "type", "veth", "peer", "name", b, "netns", self._name)
        ip("address", "add", f"{HERE}/30", "dev", a)
        ip("link", "set", a, "up")
        for words in (
            ["address", "add", f"{THERE}/30", "dev", b],
            ["link", "set", b, "up"],
            ["link", "set", "lo", "up"],
        ):
            ip("-n", self._name, *words)

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind((HERE, 0))
            port = free.getsockname()[1]
        self.address = f"{HERE}:{port}"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        ray += ["--object-store-memory", "200000000", "--disable-usage-stats"]
        head = ["--head", "--port", str(port), "--num-cpus", "0", "--include-dashboard", "false"]
        self._daemon("here", [*ray, *head, "--node-ip-address", HERE])
        until(lambda: listens(HERE, port))
        self._ray = ray
        self._start_there()

    def _start_there(self) -> None:
        inside = ["ip", "netns", "exec", self._name, "unshare", "--mount", "sh", "-c"]
        inside += ['mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
        words = ["--address", self.address, "--num-cpus", str(self._cpus)]
        self._daemon("there", [*inside, *self._ray, *words, "--node-ip-address", THERE])

    def _daemon(self, name: str, command: list[str]) -> None:
        with (self._folder / f"ray-{name}.log").open("wb") as log:
            daemon = subprocess.Popen(
                command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(daemon)


def ip(*words: str) -> None:
    """Run the program ``ip``; raise CalledProcessError if it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_be_made() -> bool:
    """Whether this user may make namespaces, and has the programs for it."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("unshare")):
        return False
    name = f"twtry{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        return False
    ip("netns", "delete", name)
    return True


def listens(host: str, port: int) -> bool:
    """Whether a program accepts connections there."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def until(done, within_s: float = START_S) -> None:
    """Wait until ``done()`` is true; raise TimeoutError if it takes too long."""
    end = time.monotonic() + within_s
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not after {within_s:g} s")
        time.sleep(0.1)
