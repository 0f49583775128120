"""One interpreter of a session, as the supervisor sees it: process, messages, output and usage."""

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

from tools.sandbox.inside import fd_passing, frames
from tools.sandbox.inside.supervisor import process_tree, watchdog
from tools.sandbox.inside.supervisor.processes import Child, Stream, processor_s

_SLACK = 1 << 12
"""Number of bytes by which the text of a refusal can exceed the limit of a message's text."""
_CREDENTIALS = struct.Struct("3i")
_REACTION_S = 0.1
"""Processor seconds that a process gets to react to an interrupt."""
_PATIENCE_S = 5.0
"""Maximum seconds to wait for a process that does not get ``_REACTION_S`` of processor time."""
STARTING, IDLE, CALLING, FORKING = "starting", "idle", "calling", "forking"
_ALL_SENT = memoryview(b"")
_UNREAD = "the program answered calls in place of the interpreter"


class MisuseError(Exception):
    """Raised when the program itself uses the interpreter's socket to the supervisor."""


@dataclass
class Branch:
    """One interpreter of a session: the first one or a copy."""

    number: int
    """Number of the branch: 0 for the first interpreter. The host numbers the copies."""
    child: Child
    """The interpreter's process. Its ``pid`` is 0 until the process has sent its first message."""
    since: float
    """Monotonic time at which the current state began."""
    deadline: float
    """Monotonic time at which the current state must have ended."""
    state: str = STARTING
    interrupted: bool = False
    interrupted_at: tuple[float, float] = (0.0, 0.0)
    """Monotonic time of the last interrupt, and processor seconds that the process had used by
    then."""
    interrupts: int = 0
    """Number of interrupts sent so far."""
    stopped: bool = False
    """Whether the branch's processes are stopped, as they are between calls."""
    checked: float = 0.0
    """Monotonic time of the last check that the processes are stopped."""
    wakeups: int = 0
    """Number of checks since the last call that found resumed processes."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Progress (``usage.progress``) of the threads that had not yet stopped after the last stop
    signal."""
    guard: watchdog.Watchdog | None = None
    copy: Branch | None = None
    """In the state FORKING: the copy that is being made."""
    announced: bool = False
    """Whether the host knows that this branch has started."""
    refused: str = ""
    """Reason why this branch did not start; empty if the branch started."""
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview = _ALL_SENT
    """The rest of the last frame that the interpreter's socket has not taken yet."""

    def descriptors(self) -> list[int]:
        """The descriptors that the supervisor polls."""
        child = self.child
        fds = [child.link.fileno(), child.pidfd, child.stdout.fd, child.stderr.fd]
        return [fd for fd in fds if fd >= 0]

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self.child.pidfd, self.child.stdout.fd, self.child.stderr.fd):
            if fd >= 0:
                os.close(fd)
        self.child.link.close()

    @property
    def reason(self) -> str:
        """Description of the limit that the branch exceeds, or ""."""
        return self.guard.reason if self.guard else ""

    def members(self) -> list[int]:
        """Ids of the branch's process and its descendants.

        Empty if the process is unknown or dead.
        """
        pid = self.child.pid
        living = pid and self.child.status is None
        return [pid, *process_tree.descendants(pid)] if living else []

    def begin(self, state: str, now: float, deadline: float) -> None:
        """Enter ``state`` at the time ``now``. The state must end at ``deadline``."""
        self.state, self.since, self.deadline = state, now, deadline
        self.interrupted = False

    def idle(self, now: float) -> None:
        """Enter the state IDLE, in which the branch waits for a call."""
        self.begin(IDLE, now, math.inf)
        self.wakeups = 0

    def interrupt(self, deadline: float) -> None:
        """Interrupt the process group, as Ctrl-C in a terminal does."""
        self.interrupted, self.deadline = True, deadline
        self.interrupted_at = time.monotonic(), processor_s(self.child.pid)
        self.interrupts += 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGINT)

    def waits_for_processor(self, now: float) -> bool:
        """Whether the interrupted process has had too little processor time to react so far.

        On a busy machine, or on one that was suspended, a process can get no processor for a
        second.
        """
        then, computed_s = self.interrupted_at
        hardly_ran = processor_s(self.child.pid) - computed_s < _REACTION_S
        return hardly_ran and now < then + _PATIENCE_S

    def run(self, code: bytes) -> None:
        """Ask the interpreter to run ``code``. Raises the errors of ``send``."""
        self.send(frames.RUN, frames.INTERRUPTS.pack(self.interrupts) + code)

    def send(self, operation: int, body: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a frame to the interpreter. ``push`` sends the part that the socket did not take.

        If the interpreter is dying, the frame is dropped.

        Raises:
            MisuseError: the last frame was answered before it was read. The interpreter reads a
                frame before it answers, so the program itself sent the answer.
        """
        frame = frames.INNER.pack(operation, len(body)) + body
        if self.unsent:
            raise MisuseError(_UNREAD)
        try:
            if fds:
                sent = fd_passing.send(self.child.link, frame, fds, socket.MSG_DONTWAIT)
            else:
                sent = self.child.link.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise MisuseError(_UNREAD) from None
        except ConnectionError:
            return
        self.unsent = memoryview(frame)[sent:] or _ALL_SENT

    def push(self) -> None:
        """Send as much of the last frame's rest as the socket takes."""
        try:
            sent = self.child.link.send(self.unsent, socket.MSG_DONTWAIT)
            self.unsent = self.unsent[sent:] or _ALL_SENT
        except BlockingIOError:
            return
        except ConnectionError:
            self.unsent = _ALL_SENT

    def receive(self, cap: int, others: Collection[int]) -> tuple[int, bytes] | None:
        """Receive the interpreter's message: its kind and text, or None while it is incomplete.

        Args:
            cap: maximum number of bytes of the text.
            others: process ids of the other branches. The first message of any other process
                identifies the process of this branch.

        Raises:
            EOFError: the socket is closed.
            MisuseError: the message is malformed, too long or not expected.
        """
        link = self.child.link
        try:
            if self.child.pid:
                data = link.recv(1 << 16, socket.MSG_DONTWAIT)
            else:
                data = self._receive_first(others)
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
        """The body of the answer to a call. It has the output since the last call.

        Args:
            kind: kind of the text.
            text: the interpreter's text.
            ready: descriptors that the last poll found readable, with the interpreter's socket.
        """
        for stream in (self.child.stdout, self.child.stderr):
            # The kernel polls in the order of registration, the socket first: a stream that it
            # found empty had no output when the answer was there.
            if stream.fd in ready:
                stream.drain()
        out, out_cut = self.child.stdout.take()
        err, err_cut = self.child.stderr.take()
        flags = out_cut * frames.STDOUT_CUT | err_cut * frames.STDERR_CUT
        flags |= bool(kind & frames.CUT) * frames.TEXT_CUT | self.interrupted * frames.INTERRUPTED
        taken = time.monotonic() - self.since
        head = frames.ANSWER.pack(flags, kind & ~frames.CUT, taken, len(out), len(err))
        return b"".join([head, out, err, text])

    def _receive_first(self, others: Collection[int]) -> bytes:
        """The first message of a copy. For this message, the kernel names the sending process."""
        # No room for descriptors: the kernel closes those that a program may have sent.
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        data, notes, _, _ = self.child.link.recvmsg(1 << 16, room, socket.MSG_DONTWAIT)
        for level, kind, note in notes:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid = _CREDENTIALS.unpack_from(note)[0]
                if pid not in others:
                    self._identify(pid)
        return data

    def _identify(self, pid: int) -> None:
        try:
            # A child's process id stays reserved until the child is reaped here.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self.child.pidfd = os.pidfd_open(pid)
        except OSError:  # the process is gone or not a child
            return
        self.child.pid = pid


def next_check_s(branches: Iterable[Branch]) -> float:
    """Seconds until the next check of any branch's limits, at most ``watchdog.MOST_S``."""
    guards = [branch.guard for branch in branches if branch.guard and not branch.stopped]
    return min([watchdog.MOST_S, *(guard.next_check_s for guard in guards)])


def first(child: Child, now: float, deadline: float) -> Branch:
    """Make the branch of the session's first process, which already has its request."""
    os.close(child.stdin)
    child.stdin = -1
    child.link.settimeout(None)
    child.stdout.discards = child.stderr.discards = True
    return Branch(0, child, now, deadline)


def copy_of(branch: Branch, number: int, now: float, deadline: float) -> Branch:
    """Ask ``branch`` to copy itself. Returns the copy, whose process is unknown until it reports.

    Raises:
        MisuseError: as ``send``.
        OSError: the kernel refuses to make or pass descriptors.
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
        branch.send(frames.FORK, str(number).encode(), (theirs.fileno(), *ends))
        kept.pop_all()
    branch.begin(FORKING, now, deadline)
    stdout, stderr = streams
    branch.copy = Branch(number, Child(0, -1, mine, -1, stdout, stderr), now, deadline)
    return branch.copy
