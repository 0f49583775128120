"""Sockets carried over a pair of byte streams: for a zygote to which no descriptor can be passed.

A tunnel has an end on either side of the byte streams, and each end a control socket. A message on
one control socket comes out of the other one, with the sockets that it brought: from then on their
bytes travel as well. Neither end interprets a byte of them. A stream may have ``_WINDOW`` bytes
under way that its receiver has not taken, so that one which nobody reads holds up no other and
fills no memory.
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
_MESSAGE, _DATA, _END, _TAKEN, _BEAT = range(5)
_BEAT_S = 1.0
_SILENCE_S = 10.0
"""Without a sign of life the other side is gone: no end of a stream tells of a killed engine."""
_WINDOW = 1 << 18
_CHUNK = 1 << 16
_MAX_QUEUED = 1 << 20
"""Bytes waiting for the other side, above which no more is read from sockets here."""
_MAX_MESSAGE = 4096
_MAX_SOCKETS = 16
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR


class _Stream:
    """One carried socket."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.number = number
        self.sock = sock
        self.fd = sock.fileno()
        self.credit = _WINDOW  # bytes that may still be sent to the other side
        self.taken = 0  # bytes given to the socket here, of which the other side was not told
        self.unsent = bytearray()  # for the socket here
        self.ended_here = False
        self.ended_there = False
        self.deaf = False  # the socket's reader is gone
        self.watched = 0


class Tunnel:
    """One end. ``serve`` returns when the other end or the control socket closes, or all is silent.

    The end with ``first=0`` gives signs of life, the other one listens for them.

    Args:
        control: SEQPACKET socket for messages of up to 4 KiB with up to 16 stream sockets.
        source: descriptor to read from the other side.
        sink: descriptor to write to it; not the same number as ``source``.
        first: 0 at one end and 1 at the other: each numbers streams in steps of two.
        decode: applied to whatever is read from ``source``.
        received: what was read from it before, decoded.
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
        self._beats = first == 0
        self._heard = self._beaten = time.monotonic()
        self._streams: dict[int, _Stream] = {}
        self._by_fd: dict[int, _Stream] = {}
        self._incoming = bytearray(received)
        self._outgoing = bytearray()
        # Apart from the other side's descriptors: this side pauses while too much is queued.
        self._local = select.epoll()
        self._local.register(control.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Carry until either side closes; whatever was carried is closed then."""
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
        paused = choked = False
        self._digest()
        while True:
            events = dict(poller.poll(1000 * _BEAT_S))
            if self._source in events and not self._hear():
                return
            if not self._alive():
                return
            if self._local.fileno() in events and not self._serve_local():
                return
            if not self._flush():
                return
            if bool(self._outgoing) != choked:
                choked = not choked
                if choked:
                    poller.register(self._sink, select.POLLOUT)
                else:
                    poller.unregister(self._sink)
            if (len(self._outgoing) > _MAX_QUEUED) != paused:
                paused = not paused
                poller.modify(self._local.fileno(), 0 if paused else select.POLLIN)

    def _alive(self) -> bool:
        """Tell the other side that this one lives; whether the other one does."""
        now = time.monotonic()
        if not self._beats:
            return now - self._heard < _SILENCE_S
        if now - self._beaten >= _BEAT_S:
            self._beaten = now
            self._queue(_BEAT, 0)
        return True

    def _serve_local(self) -> bool:
        for fd, events in self._local.poll(0):
            if fd == self._control.fileno():
                if not self._forward_message():
                    return False
                continue
            stream = self._by_fd.get(fd)
            if stream is None:
                continue  # closed by an earlier event of this round
            if stream.unsent and events & (select.EPOLLOUT | _HUNG_UP):
                self._give(stream, b"")
            if events & (select.EPOLLIN | _HUNG_UP):
                self._take(stream)
            self._settle(stream)
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
            self._take(stream)  # often the first bytes are there already
            self._settle(stream)
        return True

    def _open(self, number: int, sock: socket.socket) -> _Stream:
        stream = _Stream(number, sock)
        self._streams[number] = self._by_fd[stream.fd] = stream
        return stream

    def _take(self, stream: _Stream) -> None:
        """Read from the socket here and queue it for the other side."""
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

    def _give(self, stream: _Stream, data: bytes) -> None:
        """Write to the socket here; what it does not take yet waits."""
        before = len(stream.unsent) + len(data)
        if stream.unsent:
            stream.unsent += data
            data = bytes(stream.unsent) if not stream.deaf else b""
        while data and not stream.deaf:
            try:
                data = data[stream.sock.send(data) :]
            except BlockingIOError:
                break
            except ConnectionError:
                stream.deaf = True
        stream.unsent = bytearray() if stream.deaf else bytearray(data)
        stream.taken += before - len(stream.unsent)
        if stream.taken >= _WINDOW // 2:
            self._queue(_TAKEN, stream.number, count=stream.taken)
            stream.taken = 0

    def _settle(self, stream: _Stream) -> None:
        """After any change: pass an end on, close what is finished, watch what may still move."""
        if stream.ended_there and not stream.unsent and not stream.deaf:
            stream.deaf = True
            with contextlib.suppress(OSError):  # closed already
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

    def _hear(self) -> bool:
        try:
            data = os.read(self._source, 4 * _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._heard = time.monotonic()
        self._incoming += self._decode(data) if self._decode else data
        self._digest()
        return True

    def _digest(self) -> None:
        """Handle every frame that is whole."""
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
        if kind == _BEAT:
            return
        if kind == _MESSAGE:
            self._deliver(number, payload)
            return
        stream = self._streams.get(number)
        if stream is None:
            return  # it ended here while this was under way
        if kind == _DATA:
            self._give(stream, payload)
        elif kind == _END:
            stream.ended_there = True
        else:
            stream.credit += count
        self._settle(stream)

    def _deliver(self, number: int, payload: bytes) -> None:
        pairs = [socket.socketpair() for _ in range(payload[0])]
        socket.send_fds(self._control, [payload[1:]], [theirs.fileno() for _, theirs in pairs])
        for n, (mine, theirs) in enumerate(pairs):
            theirs.close()
            self._settle(self._open(number + 2 * n, mine))

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
