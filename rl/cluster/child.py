"""A process that works for a run, as the run sees it, and its start on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

CLOSE_S = 5.0
"""Seconds after which a process that does not end is killed."""


def end_connection(connection: Connection[Any, Any], how: int = socket.SHUT_RDWR) -> None:
    """End a connection for both sides and every thread; nothing happens if it has ended.

    Args:
        connection: the connection, of a socket.
        how: which direction to end, by ``socket``'s constants.
    """
    with contextlib.suppress(OSError):
        duplicate = os.dup(connection.fileno())
        with socket.socket(fileno=duplicate) as connected:
            connected.shutdown(how)


class ChildProcess(Protocol):
    """A process that works for a run, wherever it is."""

    number: int
    """Its number among its like, from 0."""
    pid: int
    """Its process id on its machine."""
    connection: Connection[Any, Any]
    """Carries calls to the process, and its answers. It closes when either side ends."""

    def kill(self) -> None:
        """End the process and its connection at once, without waiting for the end."""
        ...

    def wait(self) -> None:
        """Wait for the end of the process, and kill it if it takes long."""
        ...

    def epitaph(self) -> str:
        """How the process ended, in one line."""
        ...


class LocalChild:
    """A process on this machine, and the socket to it.

    It is started as ``python -m MODULE FD``, where FD is one end of a socket pair.

    Args:
        name: its name in messages, with its number.
        module: what it runs.
        number: its number.
        printed: file that receives what it prints.
        environment: additional environment variables.
    """

    def __init__(
        self,
        name: str,
        module: str,
        number: int,
        printed: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.number = number
        self._name = name
        self._printed = printed
        ours, theirs = socket.socketpair()
        # What this process can import, its children can import.
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self._printed.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                env={**os.environ, **paths, **environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is for the run, which then closes its children.
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
        line = f"{self._name} ended with exit code {code}"
        if code is None or code < 0:
            return line  # A signal ended it, whatever it printed before.
        try:
            with self._printed.open(errors="replace") as printed:
                last = deque((text.strip() for text in printed if text.strip()), maxlen=1)
        except OSError:
            return line
        return f"{line}: {last[0]}" if last else line
