"""Passing the judge's control socket into a container, after which jobs go there directly.

A descriptor can only come in by a unix socket, and that by a folder which both sides see. The
folder is empty again, and without a name, as soon as the socket was handed over. Not every engine
shows it (one outside the judge's own container, gVisor): then the tunnel carries the jobs.
"""

from __future__ import annotations

import hmac
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from tools.sandbox import scratch

FOLDER = "/handover"
"""Where the container sees the folder."""
PLACE = f"{FOLDER}/judge"
_PREFIX = "turnwise-handover-"
"""Of the folder's name; its owner's process id follows."""
_PATIENCE_S = 2.0


class Handover:
    """The judge's side: a folder with a socket at which one process is expected.

    Args:
        token: what that process has to say; it was told by another way.
    """

    def __init__(self, token: str) -> None:
        # The user in the container is nobody here; others cannot guess the folder's name.
        self._scratch = scratch.make(Path(tempfile.gettempdir()), _PREFIX, mode=0o711)
        self.folder = self._scratch.path
        self._token = token.encode()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self.folder / Path(PLACE).name
        # Not by its path, which may be longer than the 107 bytes that a socket's name may have.
        folder = os.open(self.folder, os.O_PATH | os.O_CLOEXEC)
        self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        path.chmod(0o666)
        self._listener.listen()

    def fileno(self) -> int:
        """Readable when a process is there."""
        return self._listener.fileno()

    def give(self, fd: int) -> None:
        """Hand ``fd`` to the process that is there, if it is the right one."""
        visitor, _ = self._listener.accept()
        with visitor, suppress(OSError):  # it went away
            visitor.settimeout(_PATIENCE_S)
            if hmac.compare_digest(visitor.recv(256), self._token):
                socket.send_fds(visitor, [b"control"], [fd])

    def close(self) -> None:
        """Remove the folder; a container goes on to see an empty one."""
        self._listener.close()
        (self.folder / Path(PLACE).name).unlink()
        self.folder.rmdir()
        self._scratch.release()
