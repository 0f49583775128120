"""The ``fix`` tool: replaces one line of one file, the smallest edit that a model can write."""

from __future__ import annotations

import re

from tools.builtin.edit import write_text
from tools.builtin.read import text_of
from tools.builtin.workspaces import pool_of
from tools.sandbox import AnySandbox
from tools.tool import BadArguments, ToolContext, ToolResult
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool

_CHANGE = re.compile(r"\s*(\d+)[ \t:]?(.*)", re.DOTALL)


class FixTool(WorkspaceTool):
    """Replaces one line of a fixed file. The line keeps its indentation.

    Args:
        pool: the workspaces of all episodes.
        path: the file.
    """

    def __init__(self, pool: WorkspacePool, path: str) -> None:
        super().__init__(self._call, "fix", pool)
        self._path = path

    async def _call(self, change: str, context: ToolContext) -> ToolResult:
        """Replace one line of the file. Its indentation is kept.

        Args:
            change: The line's number, a space, and the new line, as in 3 return x + 1
            context: names the episode.
        """
        found = _CHANGE.fullmatch(change)
        if found is None or "\n" in found[2].strip():
            raise BadArguments("write a line's number, a space, and the new line")
        number, line = int(found[1]), found[2].strip()
        async with self.workspace(context) as workspace:
            lines = (await text_of(workspace, self._path)).splitlines()
            if not 1 <= number <= len(lines):
                raise BadArguments(f"{self._path} has {len(lines)} lines; there is no {number}")
            old = lines[number - 1]
            lines[number - 1] = old[: len(old) - len(old.lstrip())] + line
            await write_text(workspace, self._path, "\n".join(lines) + "\n")
        return ToolResult(f"Line {number} is now: {line}", data=number)


def fix_tool(
    path: str = "main.py", sandbox: str | AnySandbox = "auto", pool: WorkspacePool | None = None
) -> FixTool:
    """Make the ``fix`` tool.

    Args:
        path: the file that it changes.
        sandbox: a running sandbox, or the name of a backend for ``tools.sandbox.make_sandbox``.
        pool: workspaces that other tools use too, in place of ``sandbox``.
    """
    return FixTool(pool or pool_of(sandbox), path)
