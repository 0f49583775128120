"""Runs a task's tests and reads the reward that they write."""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import io
import json
import math
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

from envs.harbor.config import Artifact, resolved
from envs.harbor.containers import Containers, upload
from envs.harbor.tasks import HarborTask
from tools.workspace.docker import BuildFailed, Container, DockerWorkspace
from tools.workspace.errors import WorkspaceFailure
from tools.workspace.workspace import Workspace

REWARD = "reward"
"""Name of the reward among several numbers, as in Harbor."""
LOGS = "/logs/verifier"
MAX_REWARD = 1 << 20
"""Maximum number of bytes of a reward file."""
_MAX_ARTIFACT = 256 << 20
"""Maximum number of bytes of one artifact."""
TAIL = 500
"""Number of characters of the tests' output that a failure repeats."""
_PUBLISHED = Artifact(source="/logs/artifacts")
_CLEARED = f"rm -rf {LOGS} && mkdir -p {LOGS} && chmod 777 {LOGS}"


class VerifierFailed(WorkspaceFailure):
    """Raised when a task's tests give no reward: they crash, take too long or write no number."""


class ContainerBackend:
    """Makes and judges the workspaces of tasks in containers.

    Args:
        containers: makes containers.
    """

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def agent(self, task: HarborTask) -> Workspace:
        """Start the container in which a task's agent works; see ``Backend.agent``."""
        return await self._containers.agent(task)

    async def verify(self, task: HarborTask, workspace: Workspace) -> dict[str, float]:
        """Run a task's tests on what its agent left; see ``Backend.verify``."""
        assert isinstance(workspace, DockerWorkspace)
        return await verify(task, workspace, self._containers)


async def verify(
    task: HarborTask, workspace: DockerWorkspace, containers: Containers
) -> dict[str, float]:
    """Run a task's tests on what its agent left, and return their numbers by name.

    Raises:
        VerifierFailed: the tests give no reward.
        WorkspaceFailure: a container or the engine fails.
    """
    if not task.config.verifier.separate:
        await workspace.container.check_call(["sh", "-c", f"rm -rf /tests && {_CLEARED}"])
        await upload(workspace.container, task.tests, "/tests")
        return await _judge(task, workspace, containers)
    own = await containers.verifier(task)
    try:
        for artifact in (_PUBLISHED, *task.config.copied()):
            await _copy(artifact, workspace, own)
        return await _judge(task, own, containers)
    finally:
        await own.close()


async def _judge(
    task: HarborTask, workspace: DockerWorkspace, containers: Containers
) -> dict[str, float]:
    config = task.config.verifier
    try:
        env = resolved(config.env, containers.host_env, f"task {task.name}: verifier.env")
    except ValueError as error:
        raise BuildFailed(str(error)) from error
    user = "" if config.user is None else str(config.user)
    tail, wall_s = "", containers.factor * config.timeout_sec
    container, loop = workspace.container, asyncio.get_running_loop()
    await container.check_call(["chmod", "+x", "/tests/test.sh"])
    started = loop.time()
    try:
        execution = container.execute(
            ["bash", "-c", "exec /tests/test.sh 2>&1"],
            user=user,
            env=env,
            workdir=workspace.workdir,
            wall_s=wall_s,
        )
        async with execution as running:
            async for part in running.output():
                tail = (tail + part.decode(errors="replace"))[-TAIL:]
    except WorkspaceFailure as error:
        await container.check_running()
        if loop.time() - started < wall_s:
            raise
        raise VerifierFailed(
            f"task {task.name}: the tests took longer than verifier.timeout_sec "
            f"({wall_s:g} s): {tail[-200:].strip()}"
        ) from error
    return await read_rewards(task, functools.partial(_file, container), tail)


async def read_rewards(
    task: HarborTask, read: Callable[[str], Awaitable[bytes | None]], tail: str
) -> dict[str, float]:
    """The numbers in ``reward.json``, or in ``reward.txt`` if there is no ``reward.json``.

    As in Harbor, true is 1, false is 0, and a value that is no finite number spoils the file.

    Args:
        task: the task whose tests have run.
        read: returns a file in the folder of rewards, or None if it is missing.
        tail: the end of the tests' output, for messages.

    Raises:
        VerifierFailed: there is no reward.
    """
    try:
        if (table := await read("reward.json")) is not None:
            return _numbers(table.decode())
        if (text := await read("reward.txt")) is not None:
            return {REWARD: _finite("reward.txt", float(text.decode()))}
        raise ValueError("there is no reward file")
    except (ValueError, RecursionError) as error:
        raise VerifierFailed(
            f"task {task.name}: the tests wrote no reward to {LOGS}: {error}: "
            f"{' '.join(tail.split())}"
        ) from error


async def _file(container: Container, name: str) -> bytes | None:
    try:
        return await container.read_file(f"{LOGS}/{name}", MAX_REWARD)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise VerifierFailed(f"{LOGS}/{name}: {error}") from error


def _numbers(table: str) -> dict[str, float]:
    """The numbers of ``reward.json``; a single number under another name is the reward."""
    parsed = json.loads(table)
    if not isinstance(parsed, dict):
        raise ValueError("reward.json is no object")
    found = {name: _finite(f"reward.json: {name}", value) for name, value in parsed.items()}
    if REWARD in found:
        return found
    if len(found) != 1:
        raise ValueError(f"reward.json has no {REWARD!r}, but {sorted(found) or 'no numbers'}")
    return {REWARD: next(iter(found.values()))}


def _finite(name: str, value: object) -> float:
    try:
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond the range of floats
        pass
    raise ValueError(f"{name} is {str(value)[:50]}, which is no finite number")


async def _copy(artifact: Artifact, source: DockerWorkspace, target: DockerWorkspace) -> None:
    """Copy a file or folder to the same path of another container. A missing one is left out."""
    path = str(PurePosixPath(source.workdir, artifact.source))
    try:
        packed = await source.container.get_archive(path, _MAX_ARTIFACT)
    except FileNotFoundError:
        return
    except ValueError as error:
        raise VerifierFailed(f"artifact {error}") from error
    if artifact.exclude:
        packed = await asyncio.to_thread(_without, packed, artifact.exclude)
    parent = str(PurePosixPath(path).parent)
    await target.container.check_call(["mkdir", "-p", parent])
    try:
        await target.container.put_archive(parent, packed)
    except OSError as error:
        raise VerifierFailed(f"artifact {path} cannot be copied: {error}") from error


def _without(packed: bytes, patterns: list[str]) -> bytes:
    """A tar archive without the entries that match a pattern, by name or by path."""
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed)) as old,
        tarfile.open(fileobj=buffer, mode="w") as new,
    ):
        for entry in old:
            inside = "/".join(entry.name.split("/")[1:])
            names = (inside, *PurePosixPath(inside).parts)
            if any(fnmatch.fnmatchcase(n, pattern) for n in names for pattern in patterns):
                continue
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return buffer.getvalue()
