"""The base class of tools that act in an episode's workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from tools.function import FunctionTool, ToolFunction
from tools.tool import BadArguments, Tool, ToolContext, ToolFailure
from tools.workspace.errors import ForkRefused, WorkspaceFailure, WorkspaceOver
from tools.workspace.pool import WorkspacePool
from tools.workspace.workspace import Workspace


class WorkspaceTool(FunctionTool):
    """A tool that acts in the workspace of the episode that calls it.

    ``ToolContext.session`` names the episode. If the name is empty, the call has an empty workspace
    of its own. Tools made together, by ``tools.make_tools`` or with the same pool, act in the same
    workspace.

    Args:
        function: the tool's function. Its parameter ``context`` names the episode.
        name: the tool's name.
        pool: the workspaces of all episodes.
    """

    stateful = True

    def __init__(self, function: ToolFunction, name: str, pool: WorkspacePool) -> None:
        super().__init__(function, name=name)
        self.pool = pool

    def join(self, tools: Iterable[Tool]) -> None:
        """Act in the same workspaces as the first of ``tools`` that acts in workspaces."""
        self.pool = next(tool.pool for tool in (*tools, self) if isinstance(tool, WorkspaceTool))

    @asynccontextmanager
    async def workspace(self, context: ToolContext) -> AsyncIterator[Workspace]:
        """The workspace of the episode that calls, with a tool's errors for a workspace's."""
        try:
            if context.session:
                yield self.pool.get(context.session)
                return
            alone = self.pool.make()
            try:
                yield alone
            finally:
                await alone.close()
        except WorkspaceOver as error:
            raise BadArguments(f"{error}; its files are lost") from error
        except WorkspaceFailure as error:
            raise ToolFailure(f"{self.name}: {error}", retryable=error.retryable) from error

    async def open(self) -> None:
        """Open the pool."""
        await self.pool.open()

    async def close(self) -> None:
        """Close the pool, unless another tool uses it."""
        await self.pool.close()

    async def fork(self, session: str, twin: str) -> None:
        """Give the episode ``twin`` a copy of the workspace of ``session``."""
        try:
            await self.pool.fork(session, twin)
        except (ForkRefused, WorkspaceOver) as error:
            raise ToolFailure(f"{self.name}: {error}", retryable=False) from error
        except WorkspaceFailure as error:
            raise ToolFailure(f"{self.name}: {error}", retryable=error.retryable) from error

    async def end(self, session: str) -> None:
        """End the workspace of an episode."""
        await self.pool.end(session)
