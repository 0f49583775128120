"""The tunnel: carried bytes, flow control, and its end."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from tools.sandbox.inside import tunnel


class Ends:
    """A tunnel between two control sockets; each end runs in a thread."""

    def __init__(self) -> None:
        there, back = os.pipe(), os.pipe()
        self.near, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.far, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (self.near, self.far):
            sock.settimeout(5)
        self.carrier = [back[0], there[1], there[0], back[1]]
        self.threads = [
            threading.Thread(target=self.serve, args=(near, back[0], there[1], 0)),
            threading.Thread(target=self.serve, args=(far, there[0], back[1], 1)),
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def serve(control: socket.socket, source: int, sink: int, first: int) -> None:
        tunnel.Tunnel(control, source, sink, first=first).serve()
        for fd in (source, sink):
            os.close(fd)
        control.close()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        mine, theirs = socket.socketpair()
        socket.send_fds(self.near, [b"job"], [theirs.fileno()])
        theirs.close()
        message, (fd,), _, _ = socket.recv_fds(self.far, 16, 4)
        assert message == b"job"
        other = socket.socket(fileno=fd)
        for sock in (mine, other):
            sock.settimeout(5)
        return mine, other

    def join(self) -> bool:
        for thread in self.threads:
            thread.join(5)
        return not any(thread.is_alive() for thread in self.threads)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.near.close()
    made.far.close()
    assert made.join()


def receive_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_bytes_and_ends_of_streams_travel_both_ways(ends):
    mine, other = ends.connect()
    mine.sendall(b"request")
    mine.shutdown(socket.SHUT_WR)
    assert receive_all(other) == b"request"
    other.sendall(b"reply")
    other.close()
    assert receive_all(mine) == b"reply"
    mine.close()


def test_messages_without_sockets_travel_both_ways(ends):
    ends.near.send(b"down")
    assert ends.far.recv(16) == b"down"
    ends.far.send(b"up")
    assert ends.near.recv(16) == b"up"


def test_several_sockets_arrive_in_their_order(ends):
    pairs = [socket.socketpair() for _ in range(5)]
    socket.send_fds(ends.near, [b"five"], [theirs.fileno() for _, theirs in pairs])
    _, fds, _, _ = socket.recv_fds(ends.far, 16, 8)
    for n, (mine, theirs) in enumerate(pairs):
        theirs.close()
        mine.sendall(b"%d" % n)
        mine.close()
    for n, fd in enumerate(fds):
        with socket.socket(fileno=fd) as sock:
            sock.settimeout(5)
            assert receive_all(sock) == b"%d" % n


def test_megabytes_on_many_streams_at_once_arrive_whole(ends):
    streams = [ends.connect() for _ in range(8)]
    texts = [bytes([n]) * (1_000_003 + n) for n in range(8)]
    arrived: list[bool] = []

    def send(sock: socket.socket, text: bytes) -> None:
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)

    threads = []
    for pair, text in zip(streams, texts, strict=True):
        for sock in pair:
            threads.append(threading.Thread(target=send, args=(sock, text)))
            check = (lambda s, t: arrived.append(receive_all(s) == t), (sock, text))
            threads.append(threading.Thread(target=check[0], args=check[1]))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert arrived == [True] * 16
    for pair in streams:
        for sock in pair:
            sock.close()


def test_an_unread_stream_fills_up_and_delays_no_other(ends):
    stuck, unread = ends.connect()
    stuck.setblocking(False)
    accepted, deadline = 0, time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            accepted += stuck.send(bytes(1 << 16))
        except BlockingIOError:
            time.sleep(0.01)
    assert tunnel._WINDOW <= accepted < tunnel._WINDOW + (2 << 20)
    mine, other = ends.connect()
    mine.sendall(b"past it")
    assert other.recv(16) == b"past it"
    for sock in (stuck, unread, mine, other):
        sock.close()


def test_the_end_of_a_reader_frees_its_writer(ends):
    mine, other = ends.connect()
    other.close()
    mine.sendall(bytes(4 << 20))  # times out if the bytes are not taken
    mine.close()


def test_a_tunnel_ends_with_its_byte_streams():
    ends = Ends()
    mine, other = ends.connect()
    ends.far.close()
    assert ends.join()
    assert ends.near.recv(16) == b""
    assert mine.recv(16) == b""
    for sock in (mine, other, ends.near):
        sock.close()


def test_silence_ends_the_far_end(monkeypatch):
    monkeypatch.setattr(tunnel, "_HEARTBEAT_S", 0.05)
    monkeypatch.setattr(tunnel, "_SILENCE_S", 0.3)
    (source, far_sink), (far_source, sink) = os.pipe(), os.pipe()
    control, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    started = time.monotonic()
    tunnel.Tunnel(control, source, sink, first=1).serve()
    assert 0.3 <= time.monotonic() - started < 30
    for fd in (source, far_sink, far_source, sink):
        os.close(fd)
    control.close()
    mine.close()


def test_an_idle_end_is_not_silent(monkeypatch):
    monkeypatch.setattr(tunnel, "_HEARTBEAT_S", 0.05)
    monkeypatch.setattr(tunnel, "_SILENCE_S", 2.0)
    ends = Ends()
    time.sleep(2.5)
    mine, other = ends.connect()
    mine.sendall(b"alive")
    assert other.recv(16) == b"alive"
    for sock in (mine, other, ends.near):
        sock.close()
    assert ends.join()
    ends.far.close()
