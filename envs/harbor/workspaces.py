"""The workspaces of Harbor episodes, and the tool with which the environment judges them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from envs.harbor.containers import Containers
from envs.harbor.tasks import HarborTask
from envs.harbor.verifier import verify
from tools.tool import ToolContext, ToolFailure, ToolResult
from tools.workspace import Workspace, WorkspaceFailure
from tools.workspace.docker import DockerWorkspace
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool

JUDGE = "judge"


class TaskWorkspaces(WorkspacePool):
    """A container for each episode.

    Args:
        containers: makes containers.
        tasks: the tasks by name.
    """

    def __init__(self, containers: Containers, tasks: Mapping[str, HarborTask]) -> None:
        super().__init__(_no_sandbox)
        self.containers = containers
        self.tasks = tasks

    async def open(self) -> None:
        """Do nothing: the environment opens and closes the engine."""

    async def close(self) -> None:
        """Remove the containers of all episodes."""
        await self.end_all()

    def make(self, files: Mapping[str, str | bytes] | None = None) -> Workspace:
        """Refuse: a container belongs to a task.

        Raises:
            WorkspaceFailure: always.
        """
        raise WorkspaceFailure("a tool was called outside of an episode", retryable=False)

    async def start_task(self, episode: str, name: str) -> None:
        """Give an episode the container of a task.

        Raises:
            WorkspaceFailure: the container cannot be made.
        """
        await self.adopt(episode, await self.containers.agent(self.tasks[name]))


class JudgeTool(WorkspaceTool):
    """Runs the tests of a task in an episode's workspace. Agents cannot call it.

    As a tool, its result is part of the episode's record, and a replay needs no container.

    Args:
        workspaces: the workspaces of all episodes.
    """

    def __init__(self, workspaces: TaskWorkspaces) -> None:
        super().__init__(self._call, JUDGE, workspaces)
        self._workspaces = workspaces

    async def _call(self, task: str, context: ToolContext) -> ToolResult:
        """Run the tests.

        Args:
            task: Name of the task.
            context: names the episode.
        """
        workspace = self._workspaces.get(context.session)
        assert isinstance(workspace, DockerWorkspace)
        workspaces = self._workspaces
        try:
            found = await verify(workspaces.tasks[task], workspace, workspaces.containers)
        except WorkspaceFailure as error:
            raise ToolFailure(str(error), retryable=error.retryable) from error
        return ToolResult(str(found), data=found)


def _no_sandbox() -> NoReturn:
    raise WorkspaceFailure("workspaces of tasks are containers, not sandboxes", retryable=False)
