"""The world outside a sandbox, which programs must not read, change, signal or reach."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

CANARY = "turnwise-canary-5f0e1c"
"""Secret in the host's environment, in a file and in an inheritable descriptor."""


class World:
    """A file, a process and listeners outside the sandbox, in a folder that all users may enter."""

    def __init__(self, folder: Path) -> None:
        self._opened = contextlib.ExitStack()
        for one in (folder, *folder.parents):
            if one.stat().st_uid == os.getuid() and one != Path("/"):
                with contextlib.suppress(OSError):
                    one.chmod(one.stat().st_mode | 0o055)
        self.secret = folder / "secret"
        self.secret.write_text(f"{CANARY}\n")
        self.secret.chmod(0o644)
        os.environ["TURNWISE_CANARY"] = CANARY
        self._opened.callback(os.environ.pop, "TURNWISE_CANARY")
        inherited = os.open(self.secret, os.O_RDWR)
        os.set_inheritable(inherited, True)
        self._opened.callback(os.close, inherited)
        self.victim = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self._opened.callback(self.victim.wait)
        self._opened.callback(self.victim.kill)
        self._before = self._state()
        self.touched: list[str] = []
        self.tcp = self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.path = str(folder / "unix")
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, self.path)
        Path(self.path).chmod(0o777)
        self.abstract = f"\0turnwise-{os.getpid()}"
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, self.abstract)

    def _listen(self, family: int, kind: int, address: object) -> tuple[str, int]:
        one = self._opened.enter_context(socket.socket(family, kind))
        one.bind(address)
        if kind == socket.SOCK_STREAM:
            one.listen()
        threading.Thread(target=self._wait, args=(one,), daemon=True).start()
        return one.getsockname()

    def _wait(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if one.type == socket.SOCK_STREAM:
                one.accept()
            else:
                one.recv(1)
            self.touched.append(f"a program reached {one.getsockname()!r}")

    def targets(self, isolation: str) -> dict[str, object]:
        """The targets of attacks, which programs get as ``HOST``."""
        return {
            "secret": str(self.secret),
            "victim": self.victim.pid,
            "trainer": os.getpid(),
            # In a container the tests may be in group 1, and a signal to group 1 is one to all
            # processes that the sender may reach, its own included.
            "host_group": group if (group := os.getpgid(0)) > 1 else os.getpgid(self.victim.pid),
            "tcp": self.tcp,
            "udp": self.udp,
            "unix_path": self.path,
            "unix_abstract": self.abstract,
            "namespaces": isolation == "namespaces",
        }

    def _state(self) -> dict[str, object]:
        stat = self.secret.stat()
        pid = self.victim.pid
        return {
            "the file's content": self.secret.read_text(),
            "the file's attributes": (stat.st_mode, stat.st_uid, stat.st_mtime, stat.st_nlink),
            "the folder": sorted(p.name for p in self.secret.parent.iterdir() if p.name != "unix"),
            "the process": self.victim.poll(),
            "its priority": os.getpriority(os.PRIO_PROCESS, pid),
            "its processors": sorted(os.sched_getaffinity(pid)),
            "the host's priority": os.getpriority(os.PRIO_PROCESS, 0),
        }

    def changes(self) -> list[str]:
        """What programs have changed or reached."""
        after = self._state()
        changed = [f"{k}: {v!r} -> {after[k]!r}" for k, v in self._before.items() if after[k] != v]
        return changed + self.touched

    def close(self) -> None:
        """End the process and the listeners."""
        self._opened.close()
