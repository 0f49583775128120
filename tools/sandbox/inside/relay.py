"""Process 1 of a container: starts the zygote and connects it with the host.

The host is at the other end of standard input and output. When these close, the container ends. If
the host's control socket can be passed into the container, jobs arrive over it, otherwise over
standard input.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import asdict, replace

from tools.sandbox.inside import kernel, zygote
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.supervisor import main as supervisor
from tools.sandbox.inside.tunnel import Tunnel

DIRECT, TUNNEL = b"d", b"t"
"""First byte of standard output. It says whether jobs arrive directly or through the tunnel."""
_PATIENCE_S = 5.0


def main(settings: str) -> None:
    """Serve until standard input closes or the zygote ends.

    Args:
        settings: a ``Config`` as JSON; this function sets its ``control_fd``.
    """
    kernel.set_dumpable(False)
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)
    config = Config(**json.loads(settings))
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    direct = _fetch_control(config)
    os.write(sink, TUNNEL if direct is None else DIRECT)
    if os.fork() == 0:
        for fd in (source, sink):
            os.close(fd)
        control.close()
        # With a direct socket, ``theirs`` stays open in the zygote and closes when it ends.
        serving = theirs.fileno() if direct is None else direct
        zygote.main(json.dumps(asdict(replace(config, control_fd=serving, token=""))))
    theirs.close()
    if direct is not None:
        os.close(direct)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    status = 0
    try:
        Tunnel(control, source, sink, first=1).serve()
    except BaseException as error:
        supervisor.report_error(error)
        status = 1
    os._exit(status)  # process 1: the kernel kills all others


def _fetch_control(config: Config) -> int | None:
    """The host's control socket, or None if it cannot be passed into this container."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.settimeout(_PATIENCE_S)
            server.connect(config.control_path)
            server.send(config.token.encode())
            _, fds, _, _ = socket.recv_fds(server, 16, 1)
    except OSError:
        return None
    return fds[0] if fds else None
