"""Process 1 of a container: brings the judge and the zygote, its child, together.

The judge is at the other end of standard input and output. When that closes, everything ends. Jobs
take the same way, unless the judge's own control socket can be had.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import asdict, replace

from tools.sandbox.inside import kernel, warden, zygote
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.tunnel import Tunnel

DIRECT, TUNNEL = b"d", b"t"
"""First byte of standard output: how jobs come in."""
_PATIENCE_S = 5.0


def main(settings: str) -> None:
    """Serve until standard input closes or the zygote ends.

    Args:
        settings: a ``Config`` as JSON; its ``control_fd`` is chosen here.
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
        # With a direct one, the other stays open as long as the zygote lives, and says so.
        serving = theirs.fileno() if direct is None else direct
        zygote.main(json.dumps(asdict(replace(config, control_fd=serving, token=""))))
    theirs.close()
    if direct is not None:
        os.close(direct)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end up here: nobody waits for them
    status = 0
    try:
        Tunnel(control, source, sink, first=1).serve()
    except BaseException as error:
        warden.complain(error)
        status = 1
    os._exit(status)  # process 1: the kernel kills all others


def _fetch_control(config: Config) -> int | None:
    """The judge's control socket itself; None where the engine lets no descriptor in."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as meeting:
            meeting.settimeout(_PATIENCE_S)
            meeting.connect(config.handover)
            meeting.send(config.token.encode())
            _, fds, _, _ = socket.recv_fds(meeting, 16, 1)
    except OSError:
        return None
    return fds[0] if fds else None
