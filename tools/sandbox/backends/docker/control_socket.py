"""Passes the host's control socket into a container, so that jobs reach the zygote directly.

A container can receive a descriptor only over a unix socket in a folder that both sides see. The
folder is emptied and removed as soon as the control socket is passed. Some engines cannot show the
folder to the container, such as gVisor or an engine outside the host's own container. In that case
``tools.sandbox.inside.tunnel`` carries the jobs.
"""

from __future__ import annotations

import hmac
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from tools.sandbox.backends import scratch

FOLDER = "/handover"
"""Path of the shared folder in the container."""
SOCKET_PATH = f"{FOLDER}/host"
_PREFIX = "turnwise-handover-"
"""Prefix of the folder's name on the host. The owner's process id follows."""
_PATIENCE_S = 2.0


class ControlSocketServer:
    """The host's side: a socket in a shared folder that gives one process the control socket.

    Args:
        token: secret that the process must send. The zygote's ``Config`` holds it.
    """

    def __init__(self, token: str) -> None:
        # The container's user id has no other rights here. Other users cannot guess the folder.
        self._scratch = scratch.make(Path(tempfile.gettempdir()), _PREFIX, mode=0o711)
        self.folder = self._scratch.path
        self._token = token.encode()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self.folder / Path(SOCKET_PATH).name
        # The path may be longer than the 107 bytes of a socket's name.
        folder = os.open(self.folder, os.O_PATH | os.O_CLOEXEC)
        self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        path.chmod(0o666)
        self._listener.listen()

    def fileno(self) -> int:
        """Descriptor that becomes readable when a process connects."""
        return self._listener.fileno()

    def pass_descriptor(self, fd: int) -> None:
        """Pass ``fd`` to the connecting process if it sends the token."""
        client, _ = self._listener.accept()
        with client, suppress(OSError):  # the process is gone
            client.settimeout(_PATIENCE_S)
            if hmac.compare_digest(client.recv(256), self._token):
                socket.send_fds(client, [b"control"], [fd])

    def close(self) -> None:
        """Remove the folder; the container then sees an empty one."""
        self._listener.close()
        (self.folder / Path(SOCKET_PATH).name).unlink()
        self.folder.rmdir()
        self._scratch.release()
