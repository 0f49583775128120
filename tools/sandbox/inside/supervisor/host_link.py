"""Connects a session's supervisor to the host: sends and receives the session's frames."""

from __future__ import annotations

import select
import socket

from tools.sandbox.inside import frames

_CHUNK = 1 << 16
"""Number of bytes to read at a time: small enough that malloc does not map a buffer for each
call."""
_FINISH_S = 10.0


class GoneError(Exception):
    """Raised when the host closed the stream."""


class HostLink:
    """Reads and writes frames without waiting. Data that the socket does not take is buffered.

    Args:
        stream: socket to the host.
        poller: watches the socket. The caller calls ``flush`` when the socket is writable.
    """

    def __init__(self, stream: socket.socket, poller: select.poll) -> None:
        self._stream = stream
        self._poller = poller
        self._inbox = bytearray()
        self._outbox = bytearray()
        stream.setblocking(False)
        poller.register(stream.fileno(), select.POLLIN)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._stream.fileno()

    def receive(self) -> list[tuple[int, int, bytes]]:
        """The completely received frames, each as operation, branch and body.

        Raises:
            GoneError: the host closed the stream.
        """
        try:
            data = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return []
        except ConnectionError:
            raise GoneError from None
        if not data:
            raise GoneError
        inbox = self._inbox
        inbox += data
        found = []
        while len(inbox) >= frames.HEAD.size:
            operation, number, size = frames.HEAD.unpack_from(inbox)
            end = frames.HEAD.size + size
            if len(inbox) < end:
                break
            found.append((operation, number, bytes(memoryview(inbox)[frames.HEAD.size : end])))
            del inbox[:end]
        return found

    def send(self, operation: int, number: int, body: bytes) -> None:
        """Send a frame at once or, if the socket takes no data, when it is writable.

        Raises:
            GoneError: the host closed the stream.
        """
        waiting = bool(self._outbox)
        self._outbox += frames.frame(operation, number, body)
        if not waiting:
            self._push()
            if self._outbox:
                self._poller.modify(self.fileno(), select.POLLIN | select.POLLOUT)

    def flush(self) -> None:
        """Send buffered frames when the socket is writable. Raises the errors of ``send``."""
        self._push()
        if not self._outbox:
            self._poller.modify(self.fileno(), select.POLLIN)

    def finish(self) -> None:
        """Wait until all buffered frames are sent."""
        self._stream.settimeout(_FINISH_S)
        self._stream.sendall(self._outbox)

    def _push(self) -> None:
        try:
            while self._outbox:
                sent = self._stream.send(self._outbox)
                del self._outbox[:sent]
        except BlockingIOError:
            return
        except ConnectionError:
            raise GoneError from None
