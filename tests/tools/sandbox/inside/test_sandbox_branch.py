"""How a supervisor handles messages of an untrusted interpreter."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.sandbox.inside import frames
from tools.sandbox.inside.supervisor import pausing, sessions, usage
from tools.sandbox.inside.supervisor.branch import CALLING, Branch, MisuseError, copy_of
from tools.sandbox.inside.supervisor.processes import Child, Stream, processor_s


@pytest.fixture
def pair() -> Iterator[tuple[Branch, socket.socket]]:
    """A branch, and the interpreter's end of its socket."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield Branch(0, Child(0, -1, mine, -1, Stream(-1), Stream(-1)), 0.0, 0.0), theirs


def fill(stream: socket.socket) -> int:
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += stream.send(bytes(1 << 16), socket.MSG_DONTWAIT)
    return sent


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_full_socket_at_a_frame_is_the_programs_misuse(pair):
    branch, _ = pair
    fill(branch.child.link)
    with pytest.raises(MisuseError, match="in place of the interpreter"):
        branch.run(b"1")


def test_a_full_socket_at_a_fork_is_misuse_and_leaks_no_descriptors(pair):
    branch, _ = pair
    fill(branch.child.link)
    before = descriptors()
    with pytest.raises(MisuseError):
        copy_of(branch, 1, 0.0, 1.0)
    assert (descriptors(), branch.copy) == (before, None)


def test_a_long_frame_is_sent_as_the_socket_takes_it(pair):
    branch, theirs = pair
    code = os.urandom(3 << 20)
    branch.run(code)
    received = bytearray()
    while branch.unsent:
        received += theirs.recv(1 << 20)
        branch.push()
    theirs.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            received += theirs.recv(1 << 20)
    head = frames.INNER.pack(frames.RUN, frames.INTERRUPTS.size + len(code))
    assert received == head + frames.INTERRUPTS.pack(0) + code


def test_no_frame_follows_an_unread_frame(pair):
    branch, theirs = pair
    branch.run(bytes(3 << 20))
    branch.push()  # the socket is full
    with pytest.raises(MisuseError):
        branch.run(b"1")
    theirs.close()
    branch.push()
    assert not branch.unsent


def test_a_copy_without_descriptors_is_refused(pair, monkeypatch):
    branch, _ = pair
    before = descriptors()
    real, calls = os.pipe, []

    def pipe() -> tuple[int, int]:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        return real()

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many"):
        copy_of(branch, 1, 0.0, 1.0)
    assert descriptors() == before


@pytest.fixture
def stopped() -> Iterator[Branch]:
    """A stopped branch whose process sleeps."""
    with subprocess.Popen(["sleep", "600"]) as process:
        branch = Branch(0, Child(process.pid, -1, None, -1, Stream(-1), Stream(-1)), 0.0, 0.0)
        try:
            pausing.stop(branch, Branch.members)
            yield branch
        finally:
            process.kill()


def test_a_stopped_branch_without_a_processor_does_not_count_as_resumed(stopped, monkeypatch):
    """Its threads are awake at each check, because they got no processor to stop."""
    monkeypatch.setattr(usage, "progress", lambda pid: {7: (3, 5), 8: (0, 2)})
    pausing.stop(stopped, Branch.members)
    assert not any(pausing.was_resumed(stopped, Branch.members) for _ in range(10))
    assert stopped.wakeups == 0


def test_a_stopped_branch_whose_thread_resumes_is_found_at_the_third_check(stopped, monkeypatch):
    counts = iter(range(100))
    monkeypatch.setattr(usage, "progress", lambda pid: {7: (3, next(counts))})
    assert [pausing.was_resumed(stopped, Branch.members) for _ in range(3)] == [False, False, True]


@pytest.fixture
def interrupted(monkeypatch) -> Iterator[tuple[sessions._Session, Branch, list]]:
    """A session whose interrupted call waits for a processor, its branch, and its ends."""
    mine, theirs = socket.socketpair()
    request = {"output_kb": 64, "life_s": 600.0, "idle_s": 600.0}
    with mine, theirs, subprocess.Popen(["sleep", "600"]) as process:
        session, ends = sessions._Session(None, mine, request, None), []
        monkeypatch.setattr(session, "reap", lambda: None)
        monkeypatch.setattr(session, "end", lambda branch, *why: ends.append(why))
        branch = Branch(0, Child(process.pid, -1, theirs, -1, Stream(-1), Stream(-1)), 0.0, 0.0)
        now = time.monotonic()
        branch.begin(CALLING, now - 2.0, now - 1.0)
        branch.interrupted, branch.interrupted_at = True, (now, processor_s(process.pid))
        session.branches = {0: branch}
        yield session, branch, ends
        process.kill()


def test_limits_hold_while_an_interrupted_call_waits_for_a_processor(interrupted):
    session, branch, ends = interrupted
    branch.guard = SimpleNamespace(tick=lambda: "memory", reason="too much", next_check_s=0.02)
    session.tick(branch.interrupted_at[0])
    assert ends == [("memory", "too much")]


def test_an_interrupted_call_without_a_processor_ends_after_five_seconds(interrupted):
    session, branch, ends = interrupted
    branch.guard = SimpleNamespace(tick=lambda: "", reason="", next_check_s=0.02)
    session.tick(branch.interrupted_at[0] + 4.9)
    assert ends == []
    session.tick(branch.interrupted_at[0] + 5.1)
    assert ends == [("timeout", "the call continued after its interrupt")]


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_progress_of_a_process():
    """A stopped process makes none, a running one more and more; any process name works."""
    busy = "import ctypes\nctypes.CDLL(None).prctl(15, b'ctxt_switches:1')\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        try:
            name = Path(f"/proc/{process.pid}/comm")
            until(lambda: name.read_text() == "ctxt_switches:1\n")
            first = usage.progress(process.pid)
            until(lambda: usage.progress(process.pid) != first)
            assert list(first) == [process.pid]
            process.send_signal(signal.SIGSTOP)
            until(lambda: usage.progress(process.pid) == {})
        finally:
            process.kill()


def test_descriptors_that_a_program_sends_to_its_supervisor_are_not_taken():
    mine, theirs = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    nothing = Stream(-1)
    copy = Branch(1, Child(0, -1, mine, -1, nothing, nothing), 0.0, 0.0)
    with mine, theirs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        socket.send_fds(theirs, [b"x"], [mine.fileno()] * 4)
        assert copy.receive(100, []) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before
