"""The untrusted processes of a grade, and the messages that the host exchanges with them."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from tools.sandbox.grading.channel import Channel, ChannelClosed
from tools.sandbox.host.executor import Executor
from tools.sandbox.host.job import Reply, Request
from tools.sandbox.host.reading import Clock, unpack
from tools.sandbox.inside.codec import MAX_SENT, CodecError, decode, pack
from tools.sandbox.results import Outcome, OutcomeKind, RunResult, Status

T = TypeVar("T")
_MAX_TEXT = 2000
"""Maximum number of characters that are kept of an exception's name or message."""


class CandidateFault(Exception):
    """Raised when the process can answer no more calls.

    ``outcome`` is the current call's outcome.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Conversation:
    """A running process with a channel of messages, for ``async with``.

    Leaving the context ends the process and waits for its death; ``result`` is then the run's
    result.
    """

    def __init__(self, executor: Executor, request: Request) -> None:
        self.executor = executor
        self.request = request
        self.channel = Channel()
        self.result: RunResult | None = None
        self._clock = Clock()
        self._reply: asyncio.Task[Reply] | None = None

    async def __aenter__(self) -> Self:
        """Start the process."""
        self._reply = asyncio.create_task(self._run())
        return self

    async def _run(self) -> Reply:
        try:
            return await self.executor.exchange(self.request, self.channel.theirs, self._clock)
        finally:
            self.channel.theirs.close()  # no process holds it any more: a reader sees the end

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the channel and wait for the end. If cancelled, kill the process."""
        assert self._reply is not None
        self.channel.close()
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self._reply.cancel()
            await asyncio.gather(self._reply, return_exceptions=True)
            return
        await self.finish()

    async def finish(self) -> RunResult:
        """Wait for the death of the process and return the result of its run.

        Raises:
            LostError: the supervisor does not report.
        """
        if self.result is None:
            assert self._reply is not None
            self.channel.close()
            self.result = self.executor.result(await self._reply, self.request.limits)
        return self.result

    async def message(self, read: Callable[[bytes], Any] = unpack) -> Any:
        """Wait for the next message and return it decoded.

        Args:
            read: function that decodes the frame of the message. It can run in another thread, and
                can raise ``CodecError``.

        Raises:
            CandidateFault: the process ended, or sent an invalid message.
        """
        assert self._reply is not None
        try:
            frame = await self.channel.receive()
            self._clock.charge(time.monotonic() - self.channel.last_received)
            act = functools.partial(read, frame)
            return await self.executor.reader.read(len(frame), act, self._clock)
        except (ChannelClosed, CodecError) as error:
            raise await self.fault(error) from None

    async def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            CandidateFault: the process has ended.
        """
        await self.send_frame(pack(message, MAX_SENT))

    async def send_frame(self, frame: bytes) -> None:
        """Send a message that ``pack`` made. Raises the errors of ``send``."""
        try:
            await self.channel.send(frame)
        except ChannelClosed as error:
            raise await self.fault(error) from None

    async def fault(self, error: Exception) -> CandidateFault:
        """End the process, and make the fault for an error in the exchange of messages."""
        result = await self.finish()
        if isinstance(error, CodecError):
            return CandidateFault(Outcome(OutcomeKind.ERROR, message=str(error)))
        return CandidateFault(ended(result))


def ended(result: RunResult) -> Outcome:
    """The outcome of a test during which the process ended with the result ``result``."""
    kinds = {
        Status.TIMEOUT: OutcomeKind.TIMEOUT,
        Status.MEMORY: OutcomeKind.MEMORY,
        Status.OUTPUT: OutcomeKind.OUTPUT,
    }
    how = f"signal {result.signal}" if result.exit_code is None else f"code {result.exit_code}"
    kind = kinds.get(result.status, OutcomeKind.KILLED)
    message = result.detail or (
        f"the process ended during the test ({how})" if kind is OutcomeKind.KILLED else ""
    )
    return Outcome(kind, message=message)


class Candidate(Conversation):
    """The process of a submission. It answers calls to the submission's functions."""

    calls = 0

    async def load(self) -> None:
        """Wait until the submission is loaded.

        Raises:
            CandidateFault: the submission raised or ended while it was loaded.
        """
        match await self.message():
            case ["loaded"]:
                return
            case ["failed", str(name), str(message), line] if line is None or type(line) is int:
                raise CandidateFault(_raised(name, message, line))
        raise await self._invalid()

    async def call(
        self, name: str, arguments: Any, keywords: Any, use: Callable[[Any, bytes], Any]
    ) -> Outcome:
        """Call one function with encoded arguments.

        Args:
            name: name of the function.
            arguments: encoded positional arguments.
            keywords: encoded keyword arguments.
            use: function that gets the decoded value and its frame; its result becomes the
                outcome's value. The function can run in another thread, should not keep a large
                value, and can raise ``CodecError``.

        Returns:
            An outcome of the kind ``PASSED`` with the result of ``use``, or of the kind ``ERROR``.
                ``PASSED`` only means that the call returned: the value is not compared here.

        Raises:
            CandidateFault: the process can answer no more calls.
        """
        if self.channel.unread:  # an answer before its call
            raise await self._invalid()
        self.calls += 1
        await self.send(["call", self.calls, name, arguments, keywords])
        answer = await self.message(functools.partial(_read_answer, use))
        if not isinstance(answer, list) or answer[-1:] != [self.calls] or self.channel.unread:
            raise await self._invalid()
        match answer[:-1]:
            case ["value", _Used(result)]:
                return Outcome(OutcomeKind.PASSED, result)
            case ["raised", str(kind), str(message), line] if line is None or type(line) is int:
                return _raised(kind, message, line)
            case ["strange", str(message)]:
                return _raised("", f"the answer cannot be used: {message}")
            case ["absent", str()]:
                return _raised("NameError", f"no function {name!r}")
        raise await self._invalid()

    async def _invalid(self) -> CandidateFault:
        return await self.fault(CodecError("the process sent an invalid answer"))


@dataclass(frozen=True)
class _Used:
    """The result of ``use``. This type distinguishes the result from any decoded value."""

    result: Any


def _read_answer(use: Callable[[Any, bytes], Any], frame: bytes) -> Any:
    answer = unpack(frame)
    match answer:
        case ["value", encoded, number]:
            return ["value", _Used(use(decode(encoded), frame)), number]
    return answer


def _raised(kind: str, message: str, line: int | None = None) -> Outcome:
    return Outcome(OutcomeKind.ERROR, None, printable(kind), printable(message), line)


def printable(text: str) -> str:
    """The text about an exception that a process sent, truncated and made encodable as UTF-8."""
    return text[:_MAX_TEXT].encode(errors="replace").decode()
