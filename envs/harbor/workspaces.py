"""The workspaces of Harbor episodes, and the tool with which the environment judges them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, Protocol

from envs.harbor.tasks import HarborTask
from tools.tool import ToolContext, ToolFailure, ToolResult
from tools.workspace import Workspace, WorkspaceFailure
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool

JUDGE = "judge"


class Backend(Protocol):
    """Makes and judges the workspaces of tasks."""

    async def agent(self, task: HarborTask) -> Workspace:
        """Start the workspace in which a task's agent works.

        Raises:
            WorkspaceFailure: the workspace does not start.
        """
        ...

    async def verify(self, task: HarborTask, workspace: Workspace) -> dict[str, float]:
        """Run a task's tests on what its agent left, and return their numbers by name.

        Raises:
            WorkspaceFailure: the tests give no reward, or the infrastructure fails.
        """
        ...


class TaskWorkspaces(WorkspacePool):
    """A workspace for each episode.

    Args:
        backend: makes and judges workspaces. The environment opens and closes it.
        tasks: the tasks by name.
    """

    def __init__(self, backend: Backend, tasks: Mapping[str, HarborTask]) -> None:
        super().__init__(_no_sandbox)
        self.backend = backend
        self.tasks = tasks

    async def open(self) -> None:
        """Do nothing: the environment opens and closes the backend."""

    async def close(self) -> None:
        """End the workspaces of all episodes."""
        await self.end_all()

    def make(self, files: Mapping[str, str | bytes] | None = None) -> Workspace:
        """Refuse: a workspace belongs to a task.

        Raises:
            WorkspaceFailure: always.
        """
        raise WorkspaceFailure("a tool was called outside of an episode", retryable=False)

    async def start_task(self, episode: str, name: str) -> None:
        """Give an episode the workspace of a task.

        Raises:
            WorkspaceFailure: the workspace cannot be made.
        """
        await self.adopt(episode, await self.backend.agent(self.tasks[name]))


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
        judged = self._workspaces
        try:
            found = await judged.backend.verify(judged.tasks[task], workspace)
        except WorkspaceFailure as error:
            raise ToolFailure(str(error), retryable=error.retryable) from error
        return ToolResult(str(found), data=found)


def _no_sandbox() -> NoReturn:
    raise WorkspaceFailure("a workspace belongs to a task", retryable=False)
