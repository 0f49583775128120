"""Forwards sockets over a pair of byte streams, for a zygote that cannot receive descriptors.

A tunnel has two ends, one on each side of the byte streams, and each end has a control socket. The
tunnel forwards each message on one control socket to the other one, together with the sockets that
were passed with the message. From then on, the tunnel forwards the bytes of these sockets without
interpreting them. A stream can have at most ``_WINDOW`` bytes in transit that its receiver has not
read, so that an unread stream delays no other stream and fills no memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable

_HEADER = struct.Struct("!BII")  # kind of frame, number of the stream, count
_MESSAGE, _DATA, _END, _TAKEN, _HEARTBEAT = range(5)  # kinds of frames
_HEARTBEAT_S = 1.0
_SILENCE_S = 10.0
"""Seconds without data after which the other side counts as gone. This is needed because a killed
engine closes no stream."""
_WINDOW = 1 << 18
_CHUNK = 1 << 16
_MAX_QUEUED = 1 << 20
"""Number of bytes queued for the other side above which this end reads no sockets."""
_MAX_MESSAGE = 4096
_MAX_SOCKETS = 16
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR


class _Stream:
    """A socket that the tunnel forwards."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.number = number
        self.sock = sock
        self.fd = sock.fileno()
        self.credit = _WINDOW  # bytes that may still be sent to the other side
        self.taken = 0  # bytes written to the socket here and not yet acknowledged
        self.unsent = bytearray()  # bytes to write to the socket here
        self.ended_here = False
        self.ended_there = False
        self.reader_gone = False  # the socket's reader is gone
        self.watched = 0  # polled events


class Tunnel:
    """One end of a tunnel.

    The end with ``first=0`` sends heartbeats; the other end expects them.

    Args:
        control: SEQPACKET socket for messages of up to 4 KiB with up to 16 stream sockets.
        source: descriptor to read from the other side.
        sink: descriptor to write to the other side; must differ from ``source``.
        first: number of this end's first stream: 0 at one end and 1 at the other. Each end numbers
            its streams in steps of two.
        decode: function that decodes the data of ``source``, or None to use the data unchanged.
        received: decoded data that was read from ``source`` before.
    """

    def __init__(
        self,
        control: socket.socket,
        source: int,
        sink: int,
        *,
        first: int,
        decode: Callable[[bytes], bytes] | None = None,
        received: bytes = b"",
    ) -> None:
        for fd in (control.fileno(), source, sink):
            os.set_blocking(fd, False)
        self._control = control
        self._source = source
        self._sink = sink
        self._decode = decode
        self._next = first
        self._sends_heartbeats = first == 0
        self._last_received = self._last_heartbeat = time.monotonic()
        self._streams: dict[int, _Stream] = {}
        self._by_fd: dict[int, _Stream] = {}
        self._incoming = bytearray(received)
        self._outgoing = bytearray()
        # Separate from ``source`` and ``sink``: these sockets pause while too much is queued.
        self._local = select.epoll()
        self._local.register(control.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Forward data until a descriptor of this end closes or the other side is silent.

        Then close all forwarded sockets.
        """
        try:
            self._carry()
        finally:
            for stream in self._streams.values():
                stream.sock.close()
            self._local.close()

    def _carry(self) -> None:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        poller.register(self._local.fileno(), select.POLLIN)
        paused = blocked = False
        self._handle_frames()
        while True:
            events = dict(poller.poll(1000 * _HEARTBEAT_S))
            if self._source in events and not self._read_source():
                return
            if not self._alive():
                return
            if self._local.fileno() in events and not self._serve_local():
                return
            if not self._flush():
                return
            if bool(self._outgoing) != blocked:
                blocked = not blocked
                if blocked:
                    poller.register(self._sink, select.POLLOUT)
                else:
                    poller.unregister(self._sink)
            if (len(self._outgoing) > _MAX_QUEUED) != paused:
                paused = not paused
                poller.modify(self._local.fileno(), 0 if paused else select.POLLIN)

    def _alive(self) -> bool:
        """Send a heartbeat if it is due. Returns whether the other side is alive."""
        now = time.monotonic()
        if not self._sends_heartbeats:
            return now - self._last_received < _SILENCE_S
        if now - self._last_heartbeat >= _HEARTBEAT_S:
            self._last_heartbeat = now
            self._queue(_HEARTBEAT, 0)
        return True

    def _serve_local(self) -> bool:
        for fd, events in self._local.poll(0):
            if fd == self._control.fileno():
                if not self._forward_message():
                    return False
                continue
            stream = self._by_fd.get(fd)
            if stream is None:
                continue  # an earlier event of this round closed it
            if stream.unsent and events & (select.EPOLLOUT | _HUNG_UP):
                self._write(stream, b"")
            if events & (select.EPOLLIN | _HUNG_UP):
                self._read(stream)
            self._update(stream)
        return True

    def _forward_message(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, _MAX_SOCKETS)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not message:
            return False
        self._queue(_MESSAGE, self._next, bytes([len(fds)]) + message)
        opened = [
            self._open(self._next + 2 * n, socket.socket(fileno=fd)) for n, fd in enumerate(fds)
        ]
        self._next += 2 * len(fds)
        for stream in opened:
            self._read(stream)  # the first bytes have often arrived already
            self._update(stream)
        return True

    def _open(self, number: int, sock: socket.socket) -> _Stream:
        stream = _Stream(number, sock)
        self._streams[number] = self._by_fd[stream.fd] = stream
        return stream

    def _read(self, stream: _Stream) -> None:
        """Read from the stream's socket and queue the data for the other side."""
        if stream.ended_here or stream.credit == 0:
            return
        try:
            data = stream.sock.recv(min(_CHUNK, stream.credit))
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:
            stream.credit -= len(data)
            self._queue(_DATA, stream.number, data)
        else:
            stream.ended_here = True
            self._queue(_END, stream.number)

    def _write(self, stream: _Stream, data: bytes) -> None:
        """Write received data to the stream's socket.

        Data that the socket does not take is kept.
        """
        before = len(stream.unsent) + len(data)
        if stream.unsent:
            stream.unsent += data
            data = bytes(stream.unsent) if not stream.reader_gone else b""
        while data and not stream.reader_gone:
            try:
                data = data[stream.sock.send(data) :]
            except BlockingIOError:
                break
            except ConnectionError:
                stream.reader_gone = True
        stream.unsent = bytearray() if stream.reader_gone else bytearray(data)
        stream.taken += before - len(stream.unsent)
        if stream.taken >= _WINDOW // 2:
            self._queue(_TAKEN, stream.number, count=stream.taken)
            stream.taken = 0

    def _update(self, stream: _Stream) -> None:
        """After a stream changed: forward its end; close its socket if finished, else poll it."""
        if stream.ended_there and not stream.unsent and not stream.reader_gone:
            stream.reader_gone = True
            with contextlib.suppress(OSError):  # already closed
                stream.sock.shutdown(socket.SHUT_WR)
        wanted = 0
        if stream.unsent:
            wanted |= select.EPOLLOUT
        if not stream.ended_here and stream.credit:
            wanted |= select.EPOLLIN
        if wanted != stream.watched:
            if not stream.watched:
                self._local.register(stream.fd, wanted)
            elif wanted:
                self._local.modify(stream.fd, wanted)
            else:
                self._local.unregister(stream.fd)
            stream.watched = wanted
        if stream.ended_here and stream.ended_there and not stream.unsent:
            del self._streams[stream.number], self._by_fd[stream.fd]
            stream.sock.close()

    def _read_source(self) -> bool:
        try:
            data = os.read(self._source, 4 * _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._last_received = time.monotonic()
        self._incoming += self._decode(data) if self._decode else data
        self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        """Handle every completely received frame."""
        at = 0
        while len(self._incoming) - at >= _HEADER.size:
            kind, number, count = _HEADER.unpack_from(self._incoming, at)
            end = at + _HEADER.size + (0 if kind == _TAKEN else count)
            if end > len(self._incoming):
                break
            self._handle(kind, number, count, bytes(self._incoming[at + _HEADER.size : end]))
            at = end
        del self._incoming[:at]

    def _handle(self, kind: int, number: int, count: int, payload: bytes) -> None:
        if kind == _HEARTBEAT:
            return
        if kind == _MESSAGE:
            self._deliver(number, payload)
            return
        stream = self._streams.get(number)
        if stream is None:
            return  # the stream ended here while the frame was in transit
        if kind == _DATA:
            self._write(stream, payload)
        elif kind == _END:
            stream.ended_there = True
        else:
            stream.credit += count
        self._update(stream)

    def _deliver(self, number: int, payload: bytes) -> None:
        pairs = [socket.socketpair() for _ in range(payload[0])]
        socket.send_fds(self._control, [payload[1:]], [theirs.fileno() for _, theirs in pairs])
        for n, (mine, theirs) in enumerate(pairs):
            theirs.close()
            self._update(self._open(number + 2 * n, mine))

    def _queue(self, kind: int, number: int, payload: bytes = b"", *, count: int = 0) -> None:
        self._outgoing += _HEADER.pack(kind, number, count or len(payload))
        self._outgoing += payload

    def _flush(self) -> bool:
        while self._outgoing:
            try:
                written = os.write(self._sink, memoryview(self._outgoing)[: 4 * _CHUNK])
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self._outgoing[:written]
        return True
