"""One interpreter of a session as its warden holds it: its process, what it says, what it uses."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field

from tools.sandbox.inside import frames, passing, watchdog
from tools.sandbox.inside.child import Child, Stream

_SLACK = 1 << 12
"""Bytes by which a refusal may exceed the cap of a text."""
_CREDENTIALS = struct.Struct("3i")
STARTING, IDLE, CALLING, FORKING = "starting", "idle", "calling", "forking"
_ALL_SENT = memoryview(b"")
_UNREAD = "the program answered calls in the interpreter's place"


class MisuseError(Exception):
    """Raised when the program, and not the interpreter, uses the socket to the warden."""


@dataclass
class Branch:
    """One interpreter. Its number is 0, or what the judge called the copy."""

    number: int
    child: Child
    """Its ``pid`` is 0 until the process has reported."""
    since: float
    """When its state began."""
    deadline: float
    """When the state must have ended."""
    state: str = STARTING
    interrupted: bool = False
    interrupts: int = 0
    """How many were sent so far."""
    stopped: bool = False
    """Whether its processes were stopped, as between calls."""
    looked: float = 0.0
    """When it was last seen to it that they are."""
    woken: int = 0
    """How often some went on all the same since the last call."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of its threads that had not stopped yet when they were told to: what each had done."""
    guard: watchdog.Watchdog | None = None
    copy: Branch | None = None
    """What is being made of it, while FORKING."""
    announced: bool = False
    """Whether the judge knows that it has started."""
    refused: str = ""
    """Why it came to nothing."""
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview = _ALL_SENT
    """The rest of the last frame, which the interpreter's socket had no room for."""

    def descriptors(self) -> list[int]:
        """What the warden watches of it."""
        child = self.child
        fds = [child.talk.fileno(), child.pidfd, child.stdout.fd, child.stderr.fd]
        return [fd for fd in fds if fd >= 0]

    def close(self) -> None:
        """Give back its descriptors."""
        for fd in (self.child.pidfd, self.child.stdout.fd, self.child.stderr.fd):
            if fd >= 0:
                os.close(fd)
        self.child.talk.close()

    @property
    def reason(self) -> str:
        """Why its guard wants its end."""
        return self.guard.reason if self.guard else ""

    def members(self) -> list[int]:
        """Its process and everything below that."""
        pid = self.child.pid
        living = pid and self.child.status is None
        return [pid, *watchdog.descendants(pid)] if living else []

    def begin(self, state: str, now: float, deadline: float) -> None:
        """Change the state."""
        self.state, self.since, self.deadline = state, now, deadline
        self.interrupted = False

    def idle(self, now: float) -> None:
        """Wait for the next call."""
        self.begin(IDLE, now, math.inf)
        self.woken = 0

    def interrupt(self, deadline: float) -> None:
        """Do what Ctrl-C does in a terminal: interrupt its whole process group."""
        self.interrupted, self.deadline = True, deadline
        self.interrupts += 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGINT)

    def run(self, code: bytes) -> None:
        """Have the interpreter run ``code``. Raises as ``say``."""
        self.say(frames.RUN, frames.INTERRUPTS.pack(self.interrupts) + code)

    def say(self, operation: int, body: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send the interpreter a frame, or as much as goes now: ``push`` sends the rest.

        One that is about to die hears it no more.

        Raises:
            MisuseError: the interpreter has not read the last frame. It has always read a frame
                before it answers, so the program answered.
        """
        frame = frames.INNER.pack(operation, len(body)) + body
        if self.unsent:
            raise MisuseError(_UNREAD)
        try:
            if fds:
                sent = passing.send(self.child.talk, frame, fds, socket.MSG_DONTWAIT)
            else:
                sent = self.child.talk.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise MisuseError(_UNREAD) from None
        except ConnectionError:
            return
        self.unsent = memoryview(frame)[sent:] or _ALL_SENT

    def push(self) -> None:
        """Send what is left of the last frame, as much as goes now."""
        try:
            sent = self.child.talk.send(self.unsent, socket.MSG_DONTWAIT)
            self.unsent = self.unsent[sent:] or _ALL_SENT
        except BlockingIOError:
            return
        except ConnectionError:
            self.unsent = _ALL_SENT

    def hear(self, cap: int, others: Collection[int]) -> tuple[int, bytes] | None:
        """What the interpreter said, kind and text, once it is complete.

        Args:
            cap: bytes that a text may have.
            others: the processes of the other branches; a copy is none of them.

        Raises:
            EOFError: nobody can say more.
            MisuseError: that was not the interpreter.
        """
        talk = self.child.talk
        try:
            if self.child.pid:
                data = talk.recv(1 << 16, socket.MSG_DONTWAIT)
            else:
                data = self._hear_first(others)
        except BlockingIOError:
            return None
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        received = self.received
        received += data
        if len(received) < frames.INNER.size:
            return None
        kind, size = frames.INNER.unpack_from(received)
        excess = len(received) - frames.INNER.size - size
        plain = kind & ~frames.CUT
        if plain not in frames.KINDS or size > cap + _SLACK or excess > 0 or self.state == IDLE:
            raise MisuseError("the program wrote to the interpreter's own socket")
        if excess:
            return None
        text = bytes(memoryview(received)[frames.INNER.size :])
        received.clear()
        return kind, text

    def answer(self, kind: int, text: bytes, ready: Container[int]) -> bytes:
        """The body of the answer to a call, with the output since the last one.

        Args:
            kind: of the text.
            text: what the interpreter said.
            ready: descriptors that the poll found readable when it found the interpreter's socket.
        """
        for stream in (self.child.stdout, self.child.stderr):
            # The kernel looks in the order of registration, at the socket first: a stream that it
            # found empty held nothing when the answer was there.
            if stream.fd in ready:
                stream.drain()
        out, out_cut = self.child.stdout.take()
        err, err_cut = self.child.stderr.take()
        flags = out_cut * frames.STDOUT_CUT | err_cut * frames.STDERR_CUT
        flags |= bool(kind & frames.CUT) * frames.TEXT_CUT | self.interrupted * frames.INTERRUPTED
        taken = time.monotonic() - self.since
        head = frames.ANSWER.pack(flags, kind & ~frames.CUT, taken, len(out), len(err))
        return b"".join([head, out, err, text])

    def _hear_first(self, others: Collection[int]) -> bytes:
        """The first words of a copy; the kernel says which process they come from."""
        # No room for descriptors: the kernel closes what a program may have sent along.
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        data, notes, _, _ = self.child.talk.recvmsg(1 << 16, room, socket.MSG_DONTWAIT)
        for level, kind, note in notes:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid = _CREDENTIALS.unpack_from(note)[0]
                if pid not in others:
                    self._identify(pid)
        return data

    def _identify(self, pid: int) -> None:
        try:
            # A child of this process keeps its id until it is reaped here.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self.child.pidfd = os.pidfd_open(pid)
        except OSError:  # it is gone, or no child
            return
        self.child.pid = pid


def patience_s(branches: Iterable[Branch]) -> float:
    """Seconds until what one of them uses must be looked at, or another tick is due."""
    guards = [branch.guard for branch in branches if branch.guard and not branch.stopped]
    return min([watchdog.MOST_S, *(guard.patience_s for guard in guards)])


def first(child: Child, now: float, deadline: float) -> Branch:
    """The branch of the session's first process, which has its request already."""
    os.close(child.stdin)
    child.stdin = -1
    child.talk.settimeout(None)
    child.stdout.discards = child.stderr.discards = True
    return Branch(0, child, now, deadline)


def copy_of(branch: Branch, number: int, now: float, deadline: float) -> Branch:
    """Have ``branch`` copy itself; the copy is known once it has reported.

    Raises:
        MisuseError: as ``say``.
        OSError: the kernel gives no descriptors, or passes none on.
    """
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
        mine, theirs = socket.socketpair()
        kept.callback(mine.close)
        given.callback(theirs.close)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        streams, ends = [], []
        for _ in range(2):
            reader, writer = os.pipe()
            kept.callback(os.close, reader)
            given.callback(os.close, writer)
            os.set_blocking(reader, False)
            streams.append(Stream(reader, branch.child.stdout.cap, discards=True))
            ends.append(writer)
        branch.say(frames.FORK, str(number).encode(), (theirs.fileno(), *ends))
        kept.pop_all()
    branch.begin(FORKING, now, deadline)
    stdout, stderr = streams
    branch.copy = Branch(number, Child(0, -1, mine, -1, stdout, stderr), now, deadline)
    return branch.copy
