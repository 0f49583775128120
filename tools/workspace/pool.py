"""Workspaces of episodes by name, which the tools ``bash``, ``edit`` and ``read`` share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from tools.sandbox import AnySandbox
from tools.workspace.errors import ForkRefused, WorkspaceFailure
from tools.workspace.sandboxed import SandboxWorkspace
from tools.workspace.workspace import Workspace


class WorkspacePool:
    """One workspace for each episode, made at the episode's first call.

    Several tools can share a pool. Each opens and closes it; the last ``close`` ends it.

    Args:
        sandbox: a running sandbox, or a function that makes a sandbox, which ``open`` then starts
            and the last ``close`` ends.
        max_chars: maximum number of characters of a command's output.
        idle_s: seconds without a call after which a workspace ends.
    """

    def __init__(
        self,
        sandbox: AnySandbox | Callable[[], AnySandbox],
        *,
        max_chars: int = 10_000,
        idle_s: float = 3600.0,
    ) -> None:
        self._make: Callable[[], AnySandbox] | None = sandbox if callable(sandbox) else None
        self._running: AnySandbox | None = None if callable(sandbox) else sandbox
        self._stack = AsyncExitStack()
        self._max_chars = max_chars
        self._idle_s = idle_s
        self._num_users = 0
        self._opening = asyncio.Lock()
        self._workspaces: dict[str, Workspace] = {}

    @property
    def sandbox(self) -> AnySandbox:
        """The sandbox in which the workspaces are.

        Raises:
            WorkspaceFailure: the pool is not open.
        """
        if self._running is None:
            raise WorkspaceFailure(
                "the sandbox of the workspaces does not run: await open() first", retryable=False
            )
        return self._running

    async def open(self) -> None:
        """Start the pool's own sandbox, if there is no running one.

        Raises:
            SandboxUnavailable: no backend works on this machine.
        """
        async with self._opening:
            if self._make is not None and self._running is None:
                self._running = await self._stack.enter_async_context(self._make())
            self._num_users += 1

    async def close(self) -> None:
        """End every workspace and the pool's own sandbox, when the last user closes the pool."""
        async with self._opening:
            self._num_users -= 1
            if self._num_users > 0:
                return
            await self.end_all()
            if self._make is not None:
                self._running = None
                await self._stack.aclose()

    def make(self, files: Mapping[str, str | bytes] | None = None) -> Workspace:
        """A workspace that belongs to no episode. The caller closes it."""
        return SandboxWorkspace(self.sandbox, files, max_chars=self._max_chars, idle_s=self._idle_s)

    async def start(self, name: str, files: Mapping[str, str | bytes]) -> None:
        """Give the episode ``name`` a new workspace with these files."""
        await self.end(name)
        self._workspaces[name] = self.make(files)

    async def adopt(self, name: str, workspace: Workspace) -> None:
        """Give the episode ``name`` a workspace that the caller made; the pool closes it."""
        await self.end(name)
        self._workspaces[name] = workspace

    def get(self, name: str) -> Workspace:
        """The workspace of the episode ``name``; the first call makes an empty one."""
        if name not in self._workspaces:
            self._workspaces[name] = self.make()
        return self._workspaces[name]

    async def fork(self, name: str, twin: str) -> None:
        """Give the episode ``twin`` a copy of the workspace of ``name``, unless it has one.

        Raises:
            ForkRefused: the workspace cannot be copied.
            WorkspaceFailure: the infrastructure failed.
            WorkspaceOver: the workspace has ended.
        """
        original = self._workspaces.get(name)
        if original is None or twin in self._workspaces:
            return
        if not original.forkable:
            raise ForkRefused("workspaces of this kind cannot be copied")
        self._workspaces[twin] = await original.fork()

    async def end(self, name: str) -> None:
        """End the workspace of the episode ``name``, if there is one."""
        ended = self._workspaces.pop(name, None)
        if ended is not None:
            await ended.close()

    async def end_all(self) -> None:
        """End the workspaces of all episodes."""
        workspaces, self._workspaces = self._workspaces, {}
        await asyncio.gather(*(one.close() for one in workspaces.values()))
