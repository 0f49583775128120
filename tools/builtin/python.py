"""The ``python`` tool: each episode has its own Python interpreter in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial

from tools.function import FunctionTool
from tools.sandbox import (
    AnySandbox,
    AnySession,
    CallResult,
    CopyRefused,
    Limits,
    SandboxFailure,
    SessionOver,
    make_sandbox,
)
from tools.sandbox.limits import check_session_times
from tools.tool import ToolContext, ToolFailure, ToolResult

NOTHING_SHOWN = "(no output)"
LOST = "[the interpreter has ended: {detail}; the next call starts another, without variables]"
INTERRUPTED = "[interrupted: the code took longer than {wall_s:g} s; variables are kept]"


class PythonTool(FunctionTool):
    """Runs code in an interpreter that an episode keeps between calls.

    ``ToolContext.session`` names the episode. If the name is empty, the call has an interpreter of
    its own. ``end`` ends an episode's interpreter. An interpreter that gets no call for ``idle_s``
    seconds ends by itself. ``close`` ends all interpreters.

    Args:
        sandbox: a running sandbox, or a function that makes a sandbox, which ``open`` then starts
            and ``close`` ends. The sandbox's limits apply to each interpreter, except ``wall_s``,
            which applies to each call.
        max_chars: maximum number of characters of a result's text. The middle of a longer text is
            left out.
        idle_s: seconds without a call after which an interpreter ends.

    Raises:
        ValueError: ``max_chars`` is less than 100, or ``idle_s`` is outside the sandbox's range.
    """

    stateful = True

    def __init__(
        self,
        sandbox: AnySandbox | Callable[[], AnySandbox],
        *,
        max_chars: int = 10_000,
        idle_s: float = 600.0,
    ) -> None:
        if max_chars < 100:
            raise ValueError(f"max_chars ({max_chars}) must be >= 100")
        super().__init__(self._call, name="python")
        check_session_times(idle_s, life_s=3600.0)  # An error now, not at the first call.
        self._make: Callable[[], AnySandbox] | None = sandbox if callable(sandbox) else None
        self._running: AnySandbox | None = None if callable(sandbox) else sandbox
        self._stack = AsyncExitStack()
        self._max_chars = max_chars
        self._idle_s = idle_s
        self._sessions: dict[str, AnySession] = {}

    @property
    def _sandbox(self) -> AnySandbox:
        if self._running is None:
            raise ToolFailure(
                "python: its sandbox does not run: await open() first", retryable=False
            )
        return self._running

    @property
    def backend(self) -> str:
        """Name of the backend that confines programs."""
        return self._sandbox.backend

    @property
    def isolation(self) -> str:
        """The isolation level of programs; "none" if there is no isolation."""
        return self._sandbox.isolation

    async def open(self) -> None:
        """Start the tool's own sandbox, unless a running one was passed.

        Raises:
            SandboxUnavailable: no backend works on this machine.
        """
        if self._make is not None and self._running is None:
            self._running = await self._stack.enter_async_context(self._make())

    async def _call(self, code: str, context: ToolContext) -> ToolResult:
        """Run Python code in an interpreter that keeps its variables, as a notebook does.

        What the code prints is shown, and the value of its last line if that is an expression.

        Args:
            code: Python code. Only the standard library can be imported; there is no network.
            context: names the episode.
        """
        try:
            if not context.session:
                async with self._sandbox.session(idle_s=self._idle_s) as session:
                    return self._result(await session.run(code))
            session = self._session(context.session)
            if session.over:
                await session.restart()
            try:
                return self._result(await session.run(code))
            except SessionOver:  # it was idle for too long, just now
                await session.restart()
                return replace(self._result(await session.run(code)), retries=1)
        except SandboxFailure as error:
            raise ToolFailure(f"python: {error}", retryable=error.retryable) from error

    def _session(self, name: str) -> AnySession:
        if name not in self._sessions:
            self._sessions[name] = self._sandbox.session(idle_s=self._idle_s)
        return self._sessions[name]

    def _result(self, result: CallResult) -> ToolResult:
        parts = [self._shortened(result.shown)]
        if result.over:
            parts.append(LOST.format(detail=result.detail))
        elif result.detail:
            parts.append(INTERRUPTED.format(wall_s=self._sandbox.limits.wall_s))
        text = "\n".join(part for part in parts if part)
        error = None
        if result.over:
            error = result.detail
        elif result.error:
            error = result.error.rpartition("\n")[2]
        elif result.detail:
            error = result.detail
        return ToolResult(
            text or NOTHING_SHOWN, data=asdict(result), error=error, status=_status(result)
        )

    def _shortened(self, text: str) -> str:
        excess = len(text) - self._max_chars
        if excess <= 0:
            return text
        half = self._max_chars // 2
        return f"{text[:half]}\n[{excess} characters left out]\n{text[-half:]}"

    async def fork(self, session: str, twin: str) -> None:
        """Give the episode ``twin`` a copy of the interpreter of the episode ``session``.

        If ``session`` has no running interpreter, ``twin`` also starts without one.

        Raises:
            ToolFailure: the interpreter cannot be copied.
        """
        await self.end(twin)
        original = self._sessions.get(session)
        if original is None or original.over:
            return
        try:
            self._sessions[twin] = await original.fork()
        except SessionOver:
            return
        except CopyRefused as error:
            raise ToolFailure(f"python: {error}", retryable=False) from error
        except SandboxFailure as error:
            raise ToolFailure(f"python: {error}", retryable=error.retryable) from error

    async def end(self, session: str) -> None:
        """End an episode's interpreter."""
        ended = self._sessions.pop(session, None)
        if ended is not None:
            await ended.close()

    async def close(self) -> None:
        """End the interpreters of all episodes, and the tool's own sandbox."""
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))
        if self._make is not None:
            self._running = None
            await self._stack.aclose()


def _status(result: CallResult) -> str:
    """How a call ended: the interpreter's exit code or signal, otherwise the sandbox's status."""
    if result.exit_code is not None:
        return f"exit {result.exit_code}"
    return str(result.status) if result.signal is None else f"signal {result.signal}"


def python_tool(
    sandbox: str | AnySandbox = "auto",
    wall_s: float = 5.0,
    memory_mb: int = 256,
    max_sessions: int = 256,
    max_chars: int = 10_000,
    idle_s: float = 600.0,
) -> PythonTool:
    """Make the ``python`` tool, with a running sandbox or with a sandbox of its own.

    Args:
        sandbox: a running sandbox, or the name of a backend for ``tools.sandbox.make_sandbox``.
        wall_s: time limit of one call in seconds. Only for the tool's own sandbox.
        memory_mb: memory limit of an interpreter in MiB. Only for the tool's own sandbox.
        max_sessions: maximum number of open interpreters. Only for the tool's own sandbox.
        max_chars: maximum number of characters of a result's text.
        idle_s: seconds without a call after which an interpreter ends.

    Raises:
        ValueError: a number is outside its range.
    """
    chosen: AnySandbox | Callable[[], AnySandbox]
    if isinstance(sandbox, str):
        limits = Limits(wall_s=wall_s, memory_mb=memory_mb)
        chosen = partial(make_sandbox, sandbox, limits, max_sessions=max_sessions)
    else:
        chosen = sandbox
    return PythonTool(chosen, max_chars=max_chars, idle_s=idle_s)
