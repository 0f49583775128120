"""Descriptors over sockets: what ``socket.send_fds`` and ``socket.recv_fds`` do, in fewer steps.

A warden and a program do it once in each run.
"""

from __future__ import annotations

import struct
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET, socket
from collections.abc import Sequence


def receive(sock: socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Data, and the descriptors that came with it.

    Args:
        sock: a unix socket.
        size: bytes to take at most.
        most: descriptors to take at most.
    """
    data, notes, _, _ = sock.recvmsg(size, CMSG_SPACE(4 * most))
    fds: list[int] = []
    for level, kind, body in notes:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds += memoryview(body).cast("i")
    return data, fds


def send(sock: socket, data: bytes, fds: Sequence[int], flags: int = 0) -> int:
    """Send descriptors with data; how many bytes of it went out."""
    note = SOL_SOCKET, SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds)
    return sock.sendmsg([data], [note], flags)
