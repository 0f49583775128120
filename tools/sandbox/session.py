"""A stateful interpreter in the sandbox: calls, copies of the live process, and its end."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tools.sandbox.errors import CopyRefused, SandboxBusy, SandboxFailure, SessionOver
from tools.sandbox.inside import frames
from tools.sandbox.job import Request
from tools.sandbox.limits import Limits
from tools.sandbox.link import Branch, Frame, Link
from tools.sandbox.results import CallResult, Status, status_of
from tools.sandbox.zygotes import LostError

if TYPE_CHECKING:
    from tools.sandbox.sandbox import Sandbox

_NOTHING_TO_COPY = "there is nothing to copy: the session or snapshot has ended"
_START_S = 10.0
_KILL_S = 1.0
_PLACE_S = 30.0
"""Seconds to wait for one of the sandbox's sessions to end when all are open."""


class _Live:
    """An interpreter with its place among the sandbox's open sessions."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox = sandbox
        self.limits = limits
        self.branch: Branch | None = None

    @property
    def over(self) -> bool:
        """Whether no interpreter is left to run anything."""
        return self.branch is None or self.branch.over

    async def start(self, request: Request) -> None:
        """Start the first interpreter of a new session, twice if need be."""
        await self._place()
        try:
            link = await self._sandbox.open_link(request)
        except BaseException:
            self._sandbox.places.release()
            raise
        self.branch = link.branch(self._sandbox.places.release)
        try:
            await self._started(link, self.branch, request.encode())
        except BaseException:
            link.close()
            raise

    async def copy(self, branch: Branch) -> None:
        """Become a copy of another interpreter.

        Raises:
            CopyRefused: a limit stands in the way.
            LostError: the sandbox failed.
            SessionOver: the other has ended.
        """
        await self._place()
        link = branch.link
        self.branch = link.branch(self._sandbox.places.release)
        try:
            async with link.forks, self._sandbox.slots:
                if branch.over:
                    raise SessionOver(_NOTHING_TO_COPY)
                data = frames.frame(frames.FORK, branch.number, frames.NEW.pack(self.branch.number))
                await self._started(link, self.branch, data)
        except (asyncio.CancelledError, SessionOver):
            self._disown(branch, self.branch)
            raise
        except (LostError, CopyRefused):
            if branch.report is not None:  # it ended first, perhaps its warden with it
                raise SessionOver(_NOTHING_TO_COPY) from None
            raise

    def _disown(self, branch: Branch, copy: Branch) -> None:
        """Nobody wants the copy any more: close it, once ``branch`` is done with making it."""
        made = copy.waiting
        if made is None:  # never begun, or made already
            copy.finish()
        close = frames.frame(frames.CLOSE, copy.number)
        if made is None or made.done():
            branch.link.send(close)
            return
        branch.waiting = made
        made.add_done_callback(lambda _: branch.link.send(close))

    async def _place(self) -> None:
        places = self._sandbox.places
        try:
            async with asyncio.timeout(_PLACE_S):
                await places.acquire()
        except TimeoutError:
            raise SandboxBusy(
                f"{self._sandbox.backend}: no session has ended within {_PLACE_S:g} s, and "
                f"max_sessions ({self._sandbox.max_sessions}) are open: close some, or pass "
                "make_sandbox a higher max_sessions"
            ) from None

    async def _started(self, link: Link, branch: Branch, data: bytes) -> None:
        answer = await link.ask(branch, data, _START_S)
        if answer.body:
            raise CopyRefused(f"the session cannot be copied: {answer.body.decode()}")

    async def end(self) -> None:
        """Kill the interpreter and wait until it is dead."""
        branch, self.branch = self.branch, None
        if branch is None or branch.over:
            return
        try:
            await branch.link.settled(branch)
            if not branch.over:
                close = frames.frame(frames.CLOSE, branch.number)
                await branch.link.ask(branch, close, _KILL_S)
        except LostError:
            return
        except asyncio.CancelledError:
            branch.link.send(frames.frame(frames.CLOSE, branch.number))
            raise


class Snapshot:
    """A session's state, frozen: a copy of its process that runs nothing. Made by a session.

    Sessions of the same sandbox can ``restore`` it, any number of times, until it is closed.
    """

    def __init__(self, live: _Live) -> None:
        self.live = live

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Give its process back. Closing twice is harmless."""
        await self.live.end()


class Session:
    """A Python interpreter that keeps its variables from call to call.

    Made by ``Sandbox.session``, used in ``async with``. Calls are served one after another. See
    docs/sandbox.md for what a copy shares with its original.
    """

    def __init__(self, sandbox: Sandbox, request: Request) -> None:
        self._sandbox = sandbox
        self._request = request
        self._live = _Live(sandbox, request.limits)
        self._lock = asyncio.Lock()
        self._why = "it was not started: use `async with`"

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``."""
        return self._live.over

    async def __aenter__(self) -> Self:
        """Start it. See ``start``."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def start(self) -> None:
        """Start the interpreter; one that runs already goes on.

        Raises:
            SandboxBusy: all sessions that the sandbox may have stay open.
            SandboxFailure: the sandbox failed, twice.
        """
        async with self._lock:
            if self.over:
                await self._start()

    async def restart(self) -> None:
        """Start anew: an interpreter without variables or files, whatever became of the last.

        Raises:
            SandboxFailure: see ``start``.
        """
        async with self._lock:
            await self._live.end()
            await self._start()

    async def _start(self) -> None:
        for last_try in (False, True):
            live = _Live(self._sandbox, self._request.limits)
            try:
                await live.start(self._request)
            except (LostError, CopyRefused) as error:
                if last_try:
                    raise self._sandbox.failure(str(error)) from None
                continue
            self._live = live
            self._why = "the sandbox failed, or was closed"
            return

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code where the last call left off, and say what a notebook would show.

        A call that takes too long is interrupted, as by Ctrl-C, and the variables survive; if it
        goes on for another second it is killed. Cancelling does the same.

        Args:
            code: any Python text; the value of a last line that is an expression is shown.
            wall_s: seconds that it may take; None: ``limits.wall_s`` of the session.

        Raises:
            SessionOver: the interpreter has ended before; ``restart`` makes another.
            SandboxFailure: the sandbox failed; the session is over.
            ValueError: ``wall_s`` is outside the range of ``Limits.wall_s``.
        """
        limits = self._request.limits
        if wall_s is not None:
            limits = replace(limits, wall_s=wall_s)
        head = frames.CALL.pack(limits.wall_s)
        body = head + code.encode("utf-8", "surrogatepass")
        self._sandbox.check_usable()
        async with self._lock, self._sandbox.slots:
            branch = await self._living()
            data = frames.frame(frames.RUN, branch.number, body)
            try:
                answer = await branch.link.ask(branch, data, limits.wall_s + _KILL_S)
            except LostError as error:
                raise self._lost(error) from None
            except asyncio.CancelledError:
                branch.link.send(frames.frame(frames.INTERRUPT, branch.number))
                raise
            return self._result(answer)

    async def fork(self) -> Session:
        """A second session in the state of this one; from here on they are independent.

        Raises:
            CopyRefused: a limit stands in the way, or the copy ended before it was ready.
            SessionOver: there is no interpreter to copy, or it ended meanwhile.
            SandboxBusy: all sessions that the sandbox may have stay open.
            SandboxFailure: the sandbox failed.
        """
        twin = Session(self._sandbox, self._request)
        twin._live = await self._copy()
        return twin

    async def snapshot(self) -> Snapshot:
        """The state as it is now, to ``restore`` later. Raises as ``fork``."""
        return Snapshot(await self._copy())

    async def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, whatever became of this session since. Raises as ``fork``."""
        async with self._lock:
            live = await self._copy_of(snapshot.live)
            old, self._live = self._live, live
            await old.end()

    async def close(self) -> None:
        """End the interpreter and everything it started. Closing twice is harmless."""
        self._why = "it was closed"
        async with self._lock:
            await self._live.end()

    async def _copy(self) -> _Live:
        async with self._lock:
            await self._living()
            try:
                return await self._copy_of(self._live)
            except SessionOver:
                await self._living()  # raises another, which says how it ended
                raise

    async def _copy_of(self, source: _Live) -> _Live:
        if source.branch is None:
            raise SessionOver(_NOTHING_TO_COPY)
        live = _Live(self._sandbox, self._request.limits)
        try:
            await live.copy(source.branch)
        except LostError as error:
            raise self._lost(error) from None
        return live

    async def _living(self) -> Branch:
        """The interpreter, ready for a call."""
        branch = self._live.branch
        if branch is not None and branch.waiting is not None:
            await branch.link.settled(branch)
        if branch is None or branch.over:
            if branch is not None and branch.report is not None:
                head, _, stderr = _report(branch.report)
                self._why = _ending(self._status(head, stderr), head)
            raise SessionOver(
                f"the session is over ({self._why}): `await session.restart()` starts another, "
                "without its variables and files"
            )
        return branch

    def _lost(self, error: LostError) -> SandboxFailure:
        return self._sandbox.failure(f"{error}; the session's state is lost")

    def _status(self, head: dict[str, Any], stderr: str) -> Status:
        return status_of(head, stderr, self._request.limits.cpu_seconds)

    def _result(self, answer: Frame) -> CallResult:
        self._sandbox.tally.calls += 1
        if answer.operation == frames.ENDED:
            return self._last_result(answer.body)
        flags, kind, taken, out, err = frames.ANSWER.unpack_from(answer.body)
        at = frames.ANSWER.size
        text = answer.body[at + out + err :].decode(errors="replace")
        interrupted = bool(flags & frames.INTERRUPTED)
        status = {frames.ERROR: Status.ERROR, frames.MEMORY: Status.MEMORY}.get(kind, Status.OK)
        return CallResult(
            status=Status.TIMEOUT if interrupted else status,
            stdout=answer.body[at : at + out].decode(errors="replace"),
            stderr=answer.body[at + out : at + out + err].decode(errors="replace"),
            value=text if kind == frames.VALUE else None,
            error=text if status is not Status.OK else "",
            wall_s=taken,
            over=False,
            isolation=self._sandbox.isolation,
            backend=self._sandbox.backend,
            limits_enforced_by=self._sandbox.limits_enforced_by,
            stdout_truncated=bool(flags & frames.STDOUT_CUT),
            stderr_truncated=bool(flags & frames.STDERR_CUT),
            text_truncated=bool(flags & frames.TEXT_CUT),
            detail="interrupted" if interrupted else "",
        )

    def _last_result(self, report: bytes) -> CallResult:
        head, stdout, stderr = _report(report)
        status = self._status(head, stderr)
        self._sandbox.tally.end(status)
        return CallResult(
            status=status,
            stdout=stdout,
            stderr=stderr,
            value=None,
            error="",
            wall_s=head["wall_s"],
            over=True,
            isolation=self._sandbox.isolation,
            backend=self._sandbox.backend,
            limits_enforced_by=self._sandbox.limits_enforced_by,
            stdout_truncated=head["stdout_truncated"],
            stderr_truncated=head["stderr_truncated"],
            detail=_ending(status, head),
            exit_code=head["exit_code"],
            signal=head["signal"],
        )


def _report(data: bytes) -> tuple[dict[str, Any], str, str]:
    """A warden's last report: head, standard output, standard error."""
    (length,) = struct.unpack_from("!I", data)
    head = json.loads(data[4 : 4 + length])
    out = 4 + length + head["sizes"][0]
    stdout = data[4 + length : out].decode(errors="replace")
    return head, stdout, data[out:].decode(errors="replace")


def _ending(status: Status, head: dict[str, Any]) -> str:
    """How an interpreter ended, in words."""
    if head["reason"]:
        return f"{status}: {head['reason']}"
    if head["exit_code"] is not None:
        return f"it exited with code {head['exit_code']}"
    return f"{status}: signal {head['signal']}"
