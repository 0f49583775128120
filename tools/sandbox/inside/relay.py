"""Process 1 of a container: carries jobs from the judge to the zygote, which is its child.

The judge is at the other end of standard input and output. When that closes, everything ends.
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
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for fd in (source, sink):
            os.close(fd)
        control.close()
        config = replace(Config(**json.loads(settings)), control_fd=theirs.detach())
        zygote.main(json.dumps(asdict(config)))
    theirs.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end up here: nobody waits for them
    status = 0
    try:
        Tunnel(control, source, sink, first=1).serve()
    except BaseException as error:
        warden.complain(error)
        status = 1
    os._exit(status)  # process 1: the kernel kills all others
