"""The ``bash`` tool: each episode has a shell of its own, with files, in a workspace."""

from __future__ import annotations

from dataclasses import asdict

from tools.builtin.workspaces import pool_of
from tools.sandbox import AnySandbox
from tools.tool import BadArguments, ToolContext, ToolResult
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool
from tools.workspace.workspace import CommandResult

NOTHING_SHOWN = "(no output)"
_MARGIN_S = 15.0
"""Seconds of a call's deadline that are left for interrupting a command."""


class BashTool(WorkspaceTool):
    """Runs commands in the shell of an episode's workspace.

    Args:
        pool: the workspaces of all episodes.
        wall_s: default time limit of a command in seconds.
        max_wall_s: largest time limit that a call may ask for.

    Raises:
        ValueError: a time limit is not above 0, or the default exceeds the largest.
    """

    def __init__(
        self, pool: WorkspacePool, *, wall_s: float = 30.0, max_wall_s: float = 300.0
    ) -> None:
        if not 0 < wall_s <= max_wall_s:
            raise ValueError(f"wall_s ({wall_s}) must be above 0 and at most {max_wall_s:g}")
        super().__init__(self._call, "bash", pool)
        self._wall_s = wall_s
        self._max_wall_s = max_wall_s

    async def _call(
        self, command: str, context: ToolContext, timeout: float | None = None
    ) -> ToolResult:
        """Run a command in a shell. The directory, variables and files stay for the next command.

        Output and errors are shown together; the middle of a long output is left out. There is no
        network and no terminal, and standard input is empty. A command that takes too long is
        interrupted. Start a job that should go on with & at the end.

        Args:
            command: The command line, or a script of several lines.
            timeout: Seconds after which the command is interrupted.
            context: names the episode.
        """
        wall_s = self._wall_s if timeout is None else timeout
        if not 0 < wall_s <= self._max_wall_s:
            raise BadArguments(
                f"timeout ({wall_s:g}) must be above 0 and at most {self._max_wall_s:g} seconds"
            )
        if "\0" in command:
            raise BadArguments("a command cannot have a NUL character")
        wall_s = min(wall_s, max(1.0, context.timeout_s - _MARGIN_S))
        async with self.workspace(context) as workspace:
            return shown(await workspace.run(command, wall_s=wall_s))


def shown(result: CommandResult) -> ToolResult:
    """The result of a command as the model reads it."""
    parts = [result.output.removesuffix("\n")]
    if result.detail:
        parts.append(f"[{result.detail}]")
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    if result.over:
        parts.append("[the workspace has ended; its files are lost]")
    text = "\n".join(part for part in parts if part)
    error = result.detail or "the workspace has ended" if result.over or result.timed_out else None
    status = "" if result.exit_code is None else f"exit {result.exit_code}"
    return ToolResult(
        text or NOTHING_SHOWN,
        data=asdict(result),
        error=error,
        status="timeout" if result.timed_out else status,
    )


def bash_tool(
    sandbox: str | AnySandbox = "auto",
    wall_s: float = 30.0,
    memory_mb: int = 512,
    max_sessions: int = 256,
    max_chars: int = 10_000,
    pool: WorkspacePool | None = None,
) -> BashTool:
    """Make the ``bash`` tool.

    Args:
        sandbox: a running sandbox, or the name of a backend for ``tools.sandbox.make_sandbox``.
        wall_s: default time limit of a command in seconds.
        memory_mb: memory limit of a workspace in MiB. Only for the tool's own sandbox.
        max_sessions: maximum number of open workspaces. Only for the tool's own sandbox.
        max_chars: maximum number of characters of a command's output.
        pool: workspaces that other tools use too. The other options then have no effect, except
            ``wall_s``.

    Raises:
        ValueError: a number is outside its range.
    """
    made = pool or pool_of(
        sandbox, memory_mb=memory_mb, max_sessions=max_sessions, max_chars=max_chars
    )
    return BashTool(made, wall_s=wall_s)
