"""Sessions: interpreters that keep their state between calls, and copies of them."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import replace
from typing import Any

from tools.sandbox.entering import Closed, Started
from tools.sandbox.errors import CopyRefused, SandboxFailure, SessionOver
from tools.sandbox.host.executor import Executor
from tools.sandbox.host.job import Request
from tools.sandbox.host.session_link import Branch, Frame, SessionLink
from tools.sandbox.host.session_permits import SessionPermits
from tools.sandbox.host.zygote import LostError
from tools.sandbox.inside import frames
from tools.sandbox.limits import Limits
from tools.sandbox.results import CallResult, Status, status_of

_NOTHING_TO_COPY = "there is nothing to copy: the session or snapshot has ended"
_START_S = 10.0
_KILL_S = 1.0


class _Interpreter:
    """One interpreter of a session. It holds a session permit until it ends."""

    def __init__(self, executor: Executor, limits: Limits, permits: SessionPermits) -> None:
        self._executor = executor
        self._permits = permits
        self.limits = limits
        self.branch: Branch | None = None

    @property
    def over(self) -> bool:
        """Whether the interpreter has not started or has ended."""
        return self.branch is None or self.branch.over

    async def start(self, request: Request) -> None:
        """Start this interpreter as the first one of a new session."""
        await self._permits.acquire()
        try:
            link = await self._executor.open_link(request)
        except BaseException:
            self._permits.release()
            raise
        self.branch = link.branch(self._permits.release)
        try:
            await self._started(link, self.branch, request.encode())
        except BaseException:
            link.close()
            raise

    async def copy(self, branch: Branch) -> None:
        """Start this interpreter as a copy of ``branch``'s interpreter.

        Raises:
            CopyRefused: a limit forbids the copy.
            LostError: the sandbox failed.
            SessionOver: the original has ended.
        """
        await self._permits.acquire()
        link = branch.link
        self.branch = link.branch(self._permits.release)
        try:
            async with link.forks, self._executor.permits:
                if branch.over:
                    raise SessionOver(_NOTHING_TO_COPY)
                data = frames.frame(frames.FORK, branch.number, frames.NEW.pack(self.branch.number))
                await self._started(link, self.branch, data)
        except (asyncio.CancelledError, SessionOver):
            self._discard(branch, self.branch)
            raise
        except (LostError, CopyRefused):
            if branch.report is not None:  # the original ended first, perhaps with its supervisor
                raise SessionOver(_NOTHING_TO_COPY) from None
            raise

    def _discard(self, branch: Branch, copy: Branch) -> None:
        """Close the unwanted ``copy`` as soon as ``branch`` has made it."""
        made = copy.waiting
        if made is None:  # not started, or made already
            copy.finish()
        close = frames.frame(frames.CLOSE, copy.number)
        if made is None or made.done():
            branch.link.send(close)
            return
        branch.waiting = made
        made.add_done_callback(lambda _: branch.link.send(close))

    async def _started(self, link: SessionLink, branch: Branch, data: bytes) -> None:
        answer = await link.ask(branch, data, _START_S)
        if answer.body:
            raise CopyRefused(f"the session cannot be copied: {answer.body.decode()}")

    async def end(self) -> None:
        """Kill the interpreter and wait for its death."""
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


class Snapshot(Closed):
    """The frozen state of a session, which is a stopped copy of its process.

    ``Session.snapshot`` makes a snapshot. Sessions of the same sandbox can ``restore`` it any
    number of times until it is closed.
    """

    def __init__(self, interpreter: _Interpreter) -> None:
        self.interpreter = interpreter

    async def close(self) -> None:
        """End the snapshot's process. Closing twice is harmless."""
        await self.interpreter.end()


class Session(Started):
    """A Python interpreter that keeps its variables between calls.

    ``Sandbox.session`` makes a session for ``async with``. Calls of one session run one after
    another. docs/sandbox.md lists what a copy shares with its original.
    """

    def __init__(self, executor: Executor, request: Request, permits: SessionPermits) -> None:
        self._executor = executor
        self._request = request
        self._permits = permits
        self._interpreter = _Interpreter(executor, request.limits, permits)
        self._lock = asyncio.Lock()
        self._end_reason = "it was not started: use `async with`"

    @property
    def over(self) -> bool:
        """Whether a call would raise ``SessionOver``."""
        return self._interpreter.over

    async def start(self) -> None:
        """Start the interpreter. Does nothing if it is running.

        Raises:
            SandboxBusy: no session permit became free within 30 s.
            SandboxFailure: the sandbox failed twice.
        """
        async with self._lock:
            if self.over:
                await self._start()

    async def restart(self) -> None:
        """End the interpreter, if any, and start a new one without variables or files.

        Raises:
            SandboxBusy: as ``start``.
            SandboxFailure: as ``start``.
        """
        async with self._lock:
            await self._interpreter.end()
            await self._start()

    async def _start(self) -> None:
        for last_try in (False, True):
            interpreter = _Interpreter(self._executor, self._request.limits, self._permits)
            try:
                await interpreter.start(self._request)
            except (LostError, CopyRefused) as error:
                if last_try:
                    raise self._executor.failure(str(error)) from None
                continue
            self._interpreter = interpreter
            self._end_reason = "the sandbox failed, or was closed"
            return

    def drop_files(self) -> None:
        """Free the memory of the session's ``files``.

        A later ``restart`` does not write them again.
        """
        self._request = replace(self._request, files=())

    async def run(self, code: str, *, wall_s: float | None = None) -> CallResult:
        """Run code in the interpreter and return its output, value or traceback.

        After ``wall_s`` seconds, or when the caller is cancelled, the sandbox interrupts the call
        as Ctrl-C does, and the variables survive. If the code still runs one second later, the
        sandbox kills the session. If the process got no processor time in that second, the sandbox
        waits up to five seconds.

        Args:
            code: any Python text. If the last line is an expression, its value is the call's value.
            wall_s: time limit of the call in seconds, or None for the session's ``limits.wall_s``.

        Raises:
            SessionOver: the interpreter had ended. ``restart`` starts another.
            SandboxFailure: the sandbox failed; the session is over.
            ValueError: ``wall_s`` is outside the range of ``Limits.wall_s``.
        """
        limits = self._request.limits
        if wall_s is not None:
            limits = replace(limits, wall_s=wall_s)
        head = frames.CALL.pack(limits.wall_s)
        body = head + code.encode("utf-8", "surrogatepass")
        self._executor.check_running()
        async with self._lock, self._executor.permits:
            branch = await self._running()
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
        """Make a second, independent session that continues from this session's current state.

        Raises:
            CopyRefused: a limit forbids the copy, or the copy ended before it was ready.
            SessionOver: the interpreter has ended.
            SandboxBusy: no session permit became free within 30 s.
            SandboxFailure: the sandbox failed.
        """
        twin = Session(self._executor, self._request, self._permits)
        twin._interpreter = await self._copy()
        return twin

    async def snapshot(self) -> Snapshot:
        """Make a snapshot of the current state, for ``restore``. Raises the errors of ``fork``."""
        return Snapshot(await self._copy())

    async def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, even if this session has ended.

        Raises the errors of ``fork``.
        """
        async with self._lock:
            interpreter = await self._copy_of(snapshot.interpreter)
            old, self._interpreter = self._interpreter, interpreter
            await old.end()

    async def close(self) -> None:
        """End the interpreter and every process that it started. Closing twice is harmless."""
        self._end_reason = "it was closed"
        async with self._lock:
            await self._interpreter.end()

    async def _copy(self) -> _Interpreter:
        async with self._lock:
            await self._running()
            try:
                return await self._copy_of(self._interpreter)
            except SessionOver:
                await self._running()  # raises a SessionOver that says how the session ended
                raise

    async def _copy_of(self, source: _Interpreter) -> _Interpreter:
        if source.branch is None:
            raise SessionOver(_NOTHING_TO_COPY)
        interpreter = _Interpreter(self._executor, self._request.limits, self._permits)
        try:
            await interpreter.copy(source.branch)
        except LostError as error:
            raise self._lost(error) from None
        return interpreter

    async def _running(self) -> Branch:
        """This session's running interpreter.

        Raises:
            SessionOver: the interpreter has ended.
        """
        branch = self._interpreter.branch
        if branch is not None and branch.waiting is not None:
            await branch.link.settled(branch)
        if branch is None or branch.over:
            if branch is not None and branch.report is not None:
                head, _, stderr = _report(branch.report)
                self._end_reason = _ending(self._status(head, stderr), head)
            raise SessionOver(
                f"the session is over ({self._end_reason}): `await session.restart()` starts "
                "another, without its variables and files"
            )
        return branch

    def _lost(self, error: LostError) -> SandboxFailure:
        return self._executor.failure(f"{error}; the session's state is lost")

    def _status(self, head: dict[str, Any], stderr: str) -> Status:
        return status_of(head, stderr, self._request.limits.cpu_seconds)

    def _result(self, answer: Frame) -> CallResult:
        self._executor.tally.calls += 1
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
            isolation=self._executor.isolation,
            backend=self._executor.backend,
            limits_enforced_by=self._executor.limits_enforced_by,
            stdout_truncated=bool(flags & frames.STDOUT_CUT),
            stderr_truncated=bool(flags & frames.STDERR_CUT),
            text_truncated=bool(flags & frames.TEXT_CUT),
            detail="interrupted" if interrupted else "",
        )

    def _last_result(self, report: bytes) -> CallResult:
        head, stdout, stderr = _report(report)
        status = self._status(head, stderr)
        self._executor.tally.end(status)
        return CallResult(
            status=status,
            stdout=stdout,
            stderr=stderr,
            value=None,
            error="",
            wall_s=head["wall_s"],
            over=True,
            isolation=self._executor.isolation,
            backend=self._executor.backend,
            limits_enforced_by=self._executor.limits_enforced_by,
            stdout_truncated=head["stdout_truncated"],
            stderr_truncated=head["stderr_truncated"],
            detail=_ending(status, head),
            exit_code=head["exit_code"],
            signal=head["signal"],
        )


def _report(data: bytes) -> tuple[dict[str, Any], str, str]:
    """The header, standard output and standard error in a supervisor's last report."""
    (length,) = struct.unpack_from("!I", data)
    head = json.loads(data[4 : 4 + length])
    out = 4 + length + head["sizes"][0]
    stdout = data[4 + length : out].decode(errors="replace")
    return head, stdout, data[out:].decode(errors="replace")


def _ending(status: Status, head: dict[str, Any]) -> str:
    """A description of how an interpreter ended."""
    if head["reason"]:
        return f"{status}: {head['reason']}"
    if head["exit_code"] is not None:
        return f"it exited with code {head['exit_code']}"
    return f"{status}: signal {head['signal']}"
