"""Workspaces in the project's own sandbox: each is a session of an interpreter that runs shells."""

from __future__ import annotations

import ast
import asyncio
import base64
import functools
import json
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tools.sandbox import (
    AnySandbox,
    AnySession,
    CallResult,
    Limits,
    SandboxFailure,
    SessionOver,
    Status,
)
from tools.workspace.errors import ForkRefused, WorkspaceFailure, WorkspaceOver
from tools.workspace.workspace import CommandResult

T = TypeVar("T")
_ANSWER_KB = 8192
"""KiB of one answer of the session. A part of a file travels as base64 text in one answer."""
_PART = 2 << 20
"""Maximum number of bytes of a file in one message."""
_MAX_FORKED = 16 << 20
"""Maximum number of bytes of all files of a workspace that is copied."""
_GRACE_S = 10.0
"""Seconds beyond a command's limit, in which the driver interrupts the command and answers."""
_FILE_S = 30.0
"""Time limit in seconds of reading or writing a file."""


@functools.cache
def _driver() -> str:
    return Path(__file__).with_name("driver.py").read_text(encoding="utf-8")


class SandboxWorkspace:
    """A workspace in a session of a sandbox, which starts at the first call.

    The shell is bash where the sandbox has it, else sh, and each command has a shell of its own
    that starts in the state in which the last one ended: directory, variables and umask; in bash
    also functions, aliases and options. A command that sets its own EXIT trap saves no state.
    Between calls all processes are stopped, background jobs included. ``python`` is the sandbox's
    interpreter. A copy has the files and the shell's state, but none of the processes.

    Args:
        sandbox: a running sandbox. Its limits apply to all processes of the workspace together;
            its ``wall_s`` is the default time limit of a command.
        files: contents by relative path, with which the workspace starts.
        limits: the workspace's limits, or None for the sandbox's.
        max_chars: maximum number of characters of a command's output.
        idle_s: seconds without a call after which the workspace ends.
        life_s: seconds after which the workspace ends in any case.
    """

    forkable = True

    def __init__(
        self,
        sandbox: AnySandbox,
        files: Mapping[str, str | bytes] | None = None,
        *,
        limits: Limits | None = None,
        max_chars: int = 10_000,
        idle_s: float = 3600.0,
        life_s: float = 86_400.0,
    ) -> None:
        self._sandbox = sandbox
        self._max_chars = max_chars
        self._times = (idle_s, life_s)
        self._limits = limits or sandbox.limits
        bounds = replace(self._limits, output_kb=max(_ANSWER_KB, self._limits.output_kb))
        self._session: AnySession = sandbox.session(files, bounds, idle_s=idle_s, life_s=life_s)
        self._lock = asyncio.Lock()
        self._started_at: float | None = None
        self._called_at = 0.0
        self._end_reason = ""

    # ---- the contract; see Workspace -------------------------------------------------------

    async def run(self, command: str, *, wall_s: float | None = None) -> CommandResult:
        """Run a command; see :class:`tools.workspace.Workspace`.

        Raises:
            ValueError: the command has a NUL character, or ``wall_s`` is not above 0.
        """
        if "\0" in command:
            raise ValueError("a command cannot have a NUL character")
        seconds = self._limits.wall_s if wall_s is None else wall_s
        if not seconds > 0:
            raise ValueError(f"wall_s ({seconds}) must be above 0")
        async with self._lock:
            try:
                answer = await self._call("run", command, seconds, wall_s=seconds + _GRACE_S)
            except WorkspaceOver as over:
                if not isinstance(over.__cause__, _EndedNow):
                    raise
                ended = over.__cause__.result
                timed_out = ended.status is Status.TIMEOUT
                return CommandResult(None, "", timed_out, over=True, detail=self._end_reason)
        timed_out = bool(answer.get("timed_out"))
        code = answer.get("exit_code")
        return CommandResult(
            code if isinstance(code, int) else None,
            str(answer.get("output", "")),
            timed_out,
            detail=f"interrupted after {seconds:g} s"
            if timed_out
            else str(answer.get("detail", "")),
            left_out=int(answer.get("left_out") or 0),
        )

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The content of a file; see :class:`tools.workspace.Workspace`."""
        if not 0 < max_bytes <= _PART:
            raise ValueError(f"max_bytes ({max_bytes}) must be from 1 to {_PART}")
        async with self._lock:
            answer = await self._call("read", _checked(path), max_bytes)
        _raise_os_error(answer, path)
        if "too_big" in answer:
            raise ValueError(f"{path} has more than {max_bytes} bytes")
        return _bytes(answer)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see :class:`tools.workspace.Workspace`."""
        _checked(path)
        async with self._lock:
            for start in range(0, max(1, len(data)), _PART):
                part = base64.b64encode(data[start : start + _PART]).decode()
                answer = await self._call("write", path, part, start > 0)
                _raise_os_error(answer, path)

    async def fork(self) -> SandboxWorkspace:
        """A copy; see :class:`tools.workspace.Workspace`.

        Its files must have at most 16 MiB. Background jobs are not copied.
        """
        return await self._copy(_MAX_FORKED, with_shell=True)

    async def copy_files(self, max_bytes: int) -> SandboxWorkspace:
        """A second workspace with copies of the files, but with a shell in its first state.

        Raises:
            ForkRefused: the files have more than ``max_bytes``.
        """
        return await self._copy(max_bytes, with_shell=False)

    async def _copy(self, max_bytes: int, *, with_shell: bool) -> SandboxWorkspace:
        async with self._lock:
            packed = await self._call("pack", max_bytes)
            if refusal := packed.get("refused") or packed.get("message"):
                raise ForkRefused(f"the workspace cannot be copied: {refusal}")
            parts = []
            for start in range(0, int(packed.get("size", 0)), _PART):
                parts.append(_bytes(await self._call("packed", start, start + _PART)))
        idle_s, life_s = self._times
        twin = SandboxWorkspace(
            self._sandbox,
            limits=self._limits,
            max_chars=self._max_chars,
            idle_s=idle_s,
            life_s=life_s,
        )
        try:
            await twin.write(".turnwise-copy.tar", b"".join(parts))
            async with twin._lock:
                state = str(packed.get("state", "")) if with_shell else ""
                folder = str(packed.get("folder", ""))
                made = await twin._call("unpack", ".turnwise-copy.tar", state, folder)
        except BaseException:
            await twin.close()
            raise
        if "errno" in made:
            await twin.close()
            raise ForkRefused(f"the workspace cannot be copied: {made.get('message')}")
        return twin

    async def close(self) -> None:
        """End the workspace; see :class:`tools.workspace.Workspace`."""
        self._end_reason = "it was closed"
        await self._session.close()

    # ---- calls of the driver ---------------------------------------------------------------

    async def _call(
        self, method: str, *arguments: object, wall_s: float = _FILE_S
    ) -> dict[str, Any]:
        """Call a method of the driver. The answer comes from the agent's sandbox: untrusted."""
        await self._start()
        self._called_at = time.monotonic()
        given = "".join(f", {argument!r}" for argument in arguments)
        code = f"_shell.serve({method!r}{given})"
        result = await self._infrastructure(self._session.run(code, wall_s=wall_s))
        if result.over:
            self._end_reason = result.detail or "it exceeded a limit"
            raise WorkspaceOver(f"the workspace has ended: {self._end_reason}") from _EndedNow(
                result
            )
        return await self._answer(result)

    async def _answer(self, result: CallResult) -> dict[str, Any]:
        if result.status in (Status.TIMEOUT, Status.MEMORY) or result.error:
            why = result.detail or result.error.rpartition("\n")[2]
            return {"errno": 5, "message": why, "detail": why}
        try:
            answer = json.loads(ast.literal_eval(result.value or ""))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            answer = None
        if not isinstance(answer, dict):
            self._end_reason = "a program changed the interpreter that serves it"
            await self._session.close()
            raise WorkspaceOver(f"the workspace has ended: {self._end_reason}")
        return answer

    async def _start(self) -> None:
        if self._end_reason:
            raise WorkspaceOver(f"the workspace has ended: {self._end_reason}")
        if self._started_at is not None:
            return
        await self._infrastructure(self._session.start())
        made = f"{_driver()}\n_shell = Shell({self._max_chars})\n'ready'"
        result = await self._infrastructure(self._session.run(made, wall_s=_FILE_S))
        if result.value != "'ready'":
            why = result.detail or result.error or result.status
            raise WorkspaceFailure(f"the workspace did not start: {why}")
        self._started_at = self._called_at = time.monotonic()

    async def _infrastructure(self, call: Awaitable[T]) -> T:
        """Await a call of the session, with the errors of a workspace."""
        try:
            return await call
        except SandboxFailure as error:
            self._end_reason = str(error)
            raise WorkspaceFailure(str(error), retryable=error.retryable) from error
        except SessionOver as error:
            self._end_reason = self._end_reason or str(error)
            now = time.monotonic()
            idle_s, life_s = self._times
            alive_s = now - (self._started_at or now)
            if now - self._called_at >= 0.9 * idle_s or alive_s >= 0.9 * life_s:
                raise WorkspaceFailure(f"the workspace waited for too long: {error}") from error
            raise WorkspaceOver(f"the workspace has ended: {self._end_reason}") from error


class _EndedNow(Exception):
    """The cause of a ``WorkspaceOver``: the session ended during this call."""

    def __init__(self, result: CallResult) -> None:
        super().__init__(result.detail)
        self.result = result


def _checked(path: str) -> str:
    if not path or "\0" in path:
        raise OSError(22, "Not a path", path)
    return path


def _raise_os_error(answer: Mapping[str, Any], path: str) -> None:
    if "errno" in answer:
        number = answer["errno"]
        raise OSError(number if isinstance(number, int) else 5, str(answer.get("message")), path)


def _bytes(answer: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(str(answer.get("data", "")), validate=True)
    except ValueError:
        return b""
