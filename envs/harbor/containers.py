"""Containers of Harbor tasks: images, limits, folders for logs, and health checks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from envs.harbor.config import Environment, Healthcheck, resolved
from envs.harbor.tasks import HarborTask
from tools.workspace.docker import (
    BuildFailed,
    Container,
    ContainerSpec,
    DockerWorkspace,
    Engine,
    ImageBuilder,
    pack,
)
from tools.workspace.errors import WorkspaceFailure

DEFAULT_CPUS = 1.0
DEFAULT_MEMORY_MB = 2048
"""Limits of a container whose task names none."""
LOGS = "/logs/verifier /logs/agent /logs/artifacts"
_LOGS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Containers:
    """Makes the containers of tasks.

    Args:
        engine: an open engine.
        images: the engine's images.
        network: whether a task whose ``network_mode`` is public has a network. If False, no
            container has one.
        host_env: names of this process's variables that tasks may read.
        factor: factor for the time limits of tasks.
    """

    engine: Engine
    images: ImageBuilder
    network: bool = True
    host_env: frozenset[str] = frozenset()
    factor: float = 1.0

    async def agent(self, task: HarborTask) -> DockerWorkspace:
        """Start the container in which a task's agent works.

        Raises:
            WorkspaceFailure: the image cannot be built, or the container does not start or does not
                become healthy.
        """
        place, agent = task.config.environment, task.config.agent
        folder = None if place.docker_image else task.environment
        workspace = await self._start(
            task, place, folder, user=_user(agent.user), budget_s=agent.timeout_sec
        )
        try:
            if place.docker_image and not (task.environment / "Dockerfile").exists():
                await upload(workspace.container, task.environment, workspace.workdir)
            if place.healthcheck is not None:
                await _await_health(workspace, place.healthcheck)
        except BaseException:
            await workspace.close()
            raise
        return workspace

    async def verifier(self, task: HarborTask) -> DockerWorkspace:
        """Start the container of a separate verifier. Its image holds the tests."""
        named = task.config.verifier.environment
        place = named or task.config.environment
        folder = task.tests if (task.tests / "Dockerfile").exists() else None
        return await self._start(task, place, folder, user=_user(task.config.verifier.user))

    async def _start(
        self,
        task: HarborTask,
        place: Environment,
        folder: Path | None,
        *,
        user: str,
        budget_s: float | None = None,
    ) -> DockerWorkspace:
        if folder is not None:
            image = await self.images.build(folder, self.factor * place.build_timeout_sec)
        else:
            image = place.docker_image or ""
            await self.images.check_present(image)
        try:
            env = resolved(place.env, self.host_env, f"task {task.name}: environment.env")
        except ValueError as error:
            raise BuildFailed(str(error)) from error
        spec = ContainerSpec(
            image=image,
            cpus=place.cpus or DEFAULT_CPUS,
            memory_mb=place.memory_mb or DEFAULT_MEMORY_MB,
            network=self.network and place.network_mode == "public",
            workdir=place.workdir or "",
            env=env,
        )
        workspace = await DockerWorkspace.start(
            self.engine, spec, user=user, budget_s=budget_s and self.factor * budget_s
        )
        try:
            made = f"mkdir -p {LOGS} && chmod 777 {LOGS}"
            await workspace.container.check_call(["sh", "-c", made], wall_s=_LOGS_S)
        except BaseException:
            await workspace.close()
            raise
        return workspace


async def upload(container: Container, folder: Path, target: str) -> None:
    """Copy a folder's files to a folder of a container, which is made if it is missing."""
    if not folder.is_dir():
        return
    packed = await asyncio.to_thread(pack, folder)
    await container.check_call(["mkdir", "-p", target])
    try:
        await container.put_archive(target, packed)
    except OSError as error:
        raise WorkspaceFailure(f"{folder} cannot be copied to {target}: {error}") from error


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)


async def _await_health(workspace: DockerWorkspace, check: Healthcheck) -> None:
    """Repeat a health check until it succeeds.

    Raises:
        WorkspaceFailure: it failed ``retries`` times after the start period.
    """
    loop = asyncio.get_running_loop()
    started, failures = loop.time(), 0
    while True:
        argv = ["bash", "-c", check.command]
        execution = workspace.container.execute(
            argv, workdir=workspace.workdir, wall_s=check.timeout_sec
        )
        try:
            async with execution as running:
                async for _ in running.output():
                    pass
                healthy = await running.exit_code() == 0
        except WorkspaceFailure:
            await workspace.container.check_running()
            healthy = False
        if healthy:
            return
        starting = loop.time() - started < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            raise WorkspaceFailure(f"the health check failed {failures} times: {check.command}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
