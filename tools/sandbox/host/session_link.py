"""Connects the host to a session's supervisor: sends and receives the session's frames."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from tools.sandbox.host.zygote import GRACE_S, LostError
from tools.sandbox.inside import frames

_SLACK = 1 << 16
"""Maximum number of bytes of a frame in addition to output and text."""


_REPORT_KEPT = 1 << 12
"""Maximum number of bytes that are kept of an ended branch's standard error."""


class Frame(NamedTuple):
    """A supervisor's message about one branch (interpreter) of a session."""

    operation: int
    body: bytes


class Branch:
    """One interpreter of a session, as seen by the host."""

    def __init__(self, link: SessionLink, number: int, on_end: Callable[[], None]) -> None:
        self.link = link
        self.number = number
        self.report: bytes | None = None
        """The supervisor's last report without output, or None if the interpreter runs or was
        lost."""
        self._on_end: Callable[[], None] | None = on_end
        self.waiting: asyncio.Future[Frame] | None = None
        """Future with the answer to the last frame. It is kept if the caller was cancelled."""

    @property
    def over(self) -> bool:
        """Whether the interpreter can answer no more calls."""
        return self._on_end is None

    def finish(self) -> None:
        """Mark the interpreter as ended and release its permit."""
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()


class SessionLink:
    """Stream to one supervisor; it carries every branch of a session.

    Args:
        stream: non-blocking socket to the supervisor.
        close: closes the stream.
        cap: maximum number of bytes of standard output, of standard error, and of text in one
            answer.
        on_close: called once, when the stream is closed.
    """

    def __init__(
        self,
        stream: socket.socket,
        close: Callable[[], None],
        cap: int,
        on_close: Callable[[SessionLink], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._close = close
        self._on_close = on_close
        self._limit = 3 * cap + _SLACK
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._branches: dict[int, Branch] = {}
        self._numbers = 0
        self.closed = False
        self.forks = asyncio.Lock()
        """Lock that is held while a branch is copied or closed."""
        self._loop.add_reader(stream, self._on_readable)

    def branch(self, on_end: Callable[[], None]) -> Branch:
        """Make a branch that has not started.

        ``on_end`` is called once, when the branch ends or is lost.
        """
        branch = Branch(self, self._numbers, on_end)
        self._branches[self._numbers] = branch
        self._numbers += 1
        return branch

    def send(self, data: bytes) -> None:
        """Send without waiting. Data that the socket does not take is sent later."""
        if self.closed:
            return
        if not self._outbox:
            try:
                data = data[self._stream.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the supervisor is gone; the reader notices
            if data:
                self._loop.add_writer(self._stream, self._on_writable)
        self._outbox += data

    async def ask(self, branch: Branch, data: bytes, wait_s: float) -> Frame:
        """Send a frame and wait for the supervisor's answer about ``branch``.

        Raises:
            LostError: there was no answer within ``wait_s`` plus ``GRACE_S``, or the supervisor is
                gone.
        """
        if self.closed:
            raise LostError("the session's supervisor is gone")
        answer: asyncio.Future[Frame] = self._loop.create_future()
        branch.waiting = answer
        timer = self._loop.call_later(wait_s + GRACE_S, self.close)
        try:
            self.send(data)
            return await answer
        except asyncio.CancelledError:
            if branch.waiting is answer:  # the answer is still to come
                branch.waiting = self._loop.create_future()
            raise
        finally:
            timer.cancel()

    async def settled(self, branch: Branch) -> None:
        """Wait until a branch has finished the call or copy whose caller was cancelled."""
        awaited = branch.waiting
        if awaited is None:
            return
        await asyncio.wait([awaited], timeout=GRACE_S)
        if not awaited.done():
            self.close()
        elif branch.waiting is awaited:
            branch.waiting = None

    def _on_writable(self) -> None:
        try:
            sent = self._stream.send(self._outbox)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outbox)  # the reader notices
        del self._outbox[:sent]
        if not self._outbox:
            self._loop.remove_writer(self._stream)

    def _on_readable(self) -> None:
        try:
            data = self._stream.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        inbox = self._inbox
        inbox += data
        while len(inbox) >= frames.HEAD.size:
            operation, number, size = frames.HEAD.unpack_from(inbox)
            if size > self._limit:
                self.close()
                return
            end = frames.HEAD.size + size
            if len(inbox) < end:
                return
            body = bytes(memoryview(inbox)[frames.HEAD.size : end])
            del inbox[:end]
            self._deliver(Frame(operation, body), number)

    def _deliver(self, frame: Frame, number: int) -> None:
        branch = self._branches.get(number)
        if branch is None:
            return
        if frame.operation == frames.ENDED:
            branch.report = _without_output(frame.body)
        if frame.operation == frames.ENDED or (frame.operation == frames.STARTED and frame.body):
            del self._branches[number]
            branch.finish()
        answer, branch.waiting = branch.waiting, None
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def close(self) -> None:
        """Close the stream, so that the supervisor kills the session. Closing twice is harmless."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._stream)
        self._loop.remove_writer(self._stream)
        self._close()
        branches, self._branches = self._branches, {}
        for branch in branches.values():
            branch.finish()
            answer, branch.waiting = branch.waiting, None
            if answer is not None and not answer.done():
                answer.set_exception(LostError("the session's supervisor is gone"))
                answer.exception()  # marks it as retrieved: its caller may have been cancelled
        self._on_close(self)


def _without_output(report: bytes) -> bytes:
    """A last report shortened to its header and the end of standard error.

    A caller can leave the session open for long, so the host keeps little memory for the session.
    """
    if len(report) <= _REPORT_KEPT:
        return report
    (length,) = struct.unpack_from("!I", report)
    head = json.loads(report[4 : 4 + length])
    errors = report[4 + length + head["sizes"][0] :][-_REPORT_KEPT:]
    data = json.dumps({**head, "sizes": [0, len(errors)]}).encode()
    return struct.pack("!I", len(data)) + data + errors
