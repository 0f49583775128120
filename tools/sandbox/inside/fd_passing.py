"""Passes descriptors over sockets, faster than ``socket.send_fds`` and ``socket.recv_fds`` do.

Every run uses both functions.
"""

from __future__ import annotations

import struct
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET, socket
from collections.abc import Sequence


def receive(sock: socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive data and descriptors; return both.

    Args:
        sock: a unix socket.
        size: maximum bytes to receive.
        most: maximum number of descriptors to receive.
    """
    data, notes, _, _ = sock.recvmsg(size, CMSG_SPACE(4 * most))
    fds: list[int] = []
    for level, kind, body in notes:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds += memoryview(body).cast("i")
    return data, fds


def send(sock: socket, data: bytes, fds: Sequence[int], flags: int = 0) -> int:
    """Send descriptors with data; return the number of sent bytes."""
    note = SOL_SOCKET, SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds)
    return sock.sendmsg([data], [note], flags)
