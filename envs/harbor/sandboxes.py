"""Harbor tasks in the project's own sandbox, with this machine's programs and without an engine."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Iterable
from dataclasses import replace

from envs.harbor.config import resolved
from envs.harbor.host_image import WORKDIR, placed_files
from envs.harbor.tasks import HarborTask
from envs.harbor.verifier import (
    LOGS,
    MAX_REWARD,
    REWARD,
    TAIL,
    VerifierFailed,
    read_rewards,
)
from tools.sandbox import AnySandbox, Limits
from tools.sandbox.make import linked_sandbox
from tools.workspace import CommandResult, ForkRefused, Workspace, WorkspaceFailure, WorkspaceOver
from tools.workspace.docker import NO_TIME, BuildFailed, pack
from tools.workspace.sandboxed import SandboxWorkspace

DEFAULT_MEMORY_MB = 2048
"""Memory of a workspace whose task names none."""
DISK_MB = 512
"""MiB of all files of a workspace, whatever ``environment.storage_mb`` says."""
_PROCESSES = 256
_MAX_SESSIONS = 256
_MAX_COPIED = 64 << 20
"""Maximum number of bytes of the files in ``/app`` that the tests see."""
_COMMAND_S = 60.0
_MAX_COMMAND_S = 3500.0
"""Longest time limit in seconds of the tests in a sandbox."""
_HOME = "/tmp/session"
"""The folder in which a workspace of bubblewrap starts."""
_TESTS = "/tmp/tests"
_LINKS = {
    WORKDIR: _HOME,
    "/tests": _TESTS,
    "/logs": "/tmp/logs",
    "/solution": "/tmp/solution",
}
_FOLDERS = "/tmp/logs/verifier /tmp/logs/agent /tmp/logs/artifacts"
_PACKED = "/tmp/.turnwise-files.tar"


def make_task_sandbox(tasks: Iterable[HarborTask]) -> AnySandbox:
    """A sandbox whose root has the folders of Harbor's tasks, as links to writable folders."""
    limits = Limits(
        wall_s=_COMMAND_S,
        memory_mb=max(_memory_mb(task) for task in tasks),
        processes=_PROCESSES,
        disk_mb=DISK_MB,
    )
    return linked_sandbox(_LINKS, limits, max_sessions=_MAX_SESSIONS)


def limits_warning(tasks: Iterable[HarborTask]) -> str:
    """A line about tasks whose limits are not enforced in a sandbox, or "" if there are none."""
    places = {task.name: task.config.environment for task in tasks}
    named = [name for name, place in places.items() if place.cpus or place.storage_mb]
    if not named:
        return ""
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return (
        f"harbor-v0: environment.cpus and storage_mb of {named[0]}{more} are not enforced in a "
        f"sandbox: workspaces share the processors, and each holds files of {DISK_MB} MiB"
    )


class TimedWorkspace(SandboxWorkspace):
    """A workspace of a sandbox whose commands together may take limited time."""

    forkable = False
    budget_s: float | None = None
    """Seconds left for commands, or None for no limit."""

    async def run(self, command: str, *, wall_s: float | None = None) -> CommandResult:
        """Run a command, at most for the seconds that are left."""
        if self.budget_s is None:
            return await super().run(command, wall_s=wall_s)
        if self.budget_s <= 0:
            return CommandResult(None, "", True, detail=NO_TIME)
        started = time.monotonic()
        try:
            return await super().run(command, wall_s=min(wall_s or _COMMAND_S, self.budget_s))
        finally:
            self.budget_s -= time.monotonic() - started


class SandboxBackend:
    """Makes and judges the workspaces of tasks in a sandbox.

    The tests run in a second workspace with copies of the files in ``/app``. No process, alias or
    interpreter of the agent is there.

    Args:
        sandbox: a running sandbox of :func:`make_task_sandbox`.
        host_env: names of this process's variables that tasks may read.
        factor: factor for the time limits of tasks.
    """

    def __init__(self, sandbox: AnySandbox, host_env: frozenset[str], factor: float) -> None:
        self.sandbox = sandbox
        self._host_env = host_env
        self._factor = factor

    async def agent(self, task: HarborTask) -> Workspace:
        """Start the workspace in which a task's agent works; see ``Backend.agent``."""
        limits = replace(self.sandbox.limits, memory_mb=_memory_mb(task))
        workspace = TimedWorkspace(self.sandbox, limits=limits)
        try:
            await self._fill(workspace, task)
        except BaseException:
            await workspace.close()
            raise
        allowed_s = task.config.agent.timeout_sec
        workspace.budget_s = allowed_s and self._factor * allowed_s
        return workspace

    async def verify(self, task: HarborTask, workspace: Workspace) -> dict[str, float]:
        """Run a task's tests on what its agent left; see ``Backend.verify``."""
        assert isinstance(workspace, SandboxWorkspace)
        try:
            copy = await workspace.copy_files(_MAX_COPIED)
        except WorkspaceOver:
            # The agent ended its workspace, and nothing is left of its work.
            return {REWARD: 0.0}
        except ForkRefused as error:
            raise VerifierFailed(f"task {task.name}: {error}", retryable=False) from error
        try:
            return await self._judge(task, copy)
        except WorkspaceOver as error:
            raise VerifierFailed(f"task {task.name}: the tests: {error}") from error
        finally:
            await copy.close()

    async def _fill(self, workspace: SandboxWorkspace, task: HarborTask) -> None:
        """Write the task's files to ``/app``, and set the task's variables."""
        env = self._resolved(task.config.environment.env, task, "environment.env")
        exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in env.items())
        await _checked_run(workspace, f"mkdir -p {_FOLDERS}\ncd {WORKDIR}\n{exports}")
        for placed in placed_files(task.environment):
            data = (
                await asyncio.to_thread(placed.source.read_bytes)
                if placed.source.is_file()
                else None
            )
            target = shlex.quote(str(placed.target))
            if data is not None:
                await workspace.write(str(placed.target), data)
                if os.access(placed.source, os.X_OK):
                    await _checked_run(workspace, f"chmod +x {target}")
                continue
            await _unpack(
                workspace, await asyncio.to_thread(pack, placed.source), f"{_HOME}/{placed.target}"
            )

    async def _judge(self, task: HarborTask, workspace: SandboxWorkspace) -> dict[str, float]:
        config = task.config.verifier
        env = self._resolved(config.env, task, "verifier.env")
        await _checked_run(workspace, f"mkdir -p {_FOLDERS}")
        await _unpack(workspace, await asyncio.to_thread(pack, task.tests), _TESTS)
        await _checked_run(workspace, f"chmod +x {_TESTS}/test.sh")
        wall_s = min(self._factor * config.timeout_sec, _MAX_COMMAND_S)
        words = " ".join(f"{name}={shlex.quote(text)}" for name, text in env.items())
        command = f"cd {WORKDIR} && env HOME=/tmp {words} /tests/test.sh"
        result = await workspace.run(command, wall_s=wall_s)
        tail = result.output[-TAIL:]
        if result.timed_out:
            raise VerifierFailed(
                f"task {task.name}: the tests took longer than verifier.timeout_sec "
                f"({wall_s:g} s): {tail[-200:].strip()}"
            )
        if result.over:
            raise VerifierFailed(
                f"task {task.name}: the tests ended their sandbox: {result.detail}"
            )

        async def read(name: str) -> bytes | None:
            try:
                return await workspace.read(f"{LOGS}/{name}", max_bytes=MAX_REWARD)
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                raise VerifierFailed(f"{LOGS}/{name}: {error}") from error

        return await read_rewards(task, read, tail)

    def _resolved(self, values: dict[str, str], task: HarborTask, field: str) -> dict[str, str]:
        try:
            return resolved(values, self._host_env, f"task {task.name}: {field}")
        except ValueError as error:
            raise BuildFailed(str(error)) from error


def _memory_mb(task: HarborTask) -> int:
    return task.config.environment.memory_mb or DEFAULT_MEMORY_MB


async def _unpack(workspace: SandboxWorkspace, packed: bytes, folder: str) -> None:
    """Write the files of an archive to a folder of a workspace."""
    await workspace.write(_PACKED, packed)
    place = shlex.quote(folder)
    await _checked_run(
        workspace, f"mkdir -p {place} && tar -xf {_PACKED} -C {place} && rm {_PACKED}"
    )


async def _checked_run(workspace: SandboxWorkspace, command: str) -> None:
    """Run a command of the environment's own.

    Raises:
        WorkspaceFailure: the command fails.
    """
    result = await SandboxWorkspace.run(workspace, command)
    if result.exit_code != 0:
        why = result.detail or result.output.strip()
        raise WorkspaceFailure(
            f"the workspace of a task cannot be prepared: {why}", retryable=False
        )
