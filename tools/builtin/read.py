"""The ``read`` tool: shows lines of a file in an episode's workspace."""

from __future__ import annotations

from tools.builtin.workspaces import pool_of
from tools.sandbox import AnySandbox
from tools.tool import BadArguments, ToolContext, ToolResult
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool
from tools.workspace.workspace import Workspace

MAX_BYTES = 1 << 20
"""Maximum size in bytes of a file that the tools ``read`` and ``edit`` open."""
MAX_LINE = 1000
"""Maximum number of characters of a line to show."""


class ReadTool(WorkspaceTool):
    """Shows lines of a text file with their numbers.

    Args:
        pool: the workspaces of all episodes.
        max_chars: maximum number of characters of a result. Further lines are not shown.
    """

    def __init__(self, pool: WorkspacePool, *, max_chars: int = 10_000) -> None:
        super().__init__(self._call, "read", pool)
        self._max_chars = max_chars

    async def _call(
        self, path: str, context: ToolContext, offset: int = 1, limit: int = 500
    ) -> ToolResult:
        """Read a text file. Each line is shown after its number and a tab.

        Args:
            path: Path of the file, absolute or from the folder in which the shell starts.
            offset: Number of the first line to show, counted from 1.
            limit: Maximum number of lines to show.
            context: names the episode.
        """
        if offset < 1 or limit < 1:
            raise BadArguments(f"offset ({offset}) and limit ({limit}) must be at least 1")
        async with self.workspace(context) as workspace:
            text = await text_of(workspace, path)
        lines = text.splitlines()
        if offset > max(1, len(lines)):
            raise BadArguments(f"{path} has {len(lines)} lines; offset is {offset}")
        return ToolResult(self._shown(lines, offset, limit), data=text)

    def _shown(self, lines: list[str], offset: int, limit: int) -> str:
        rows: list[str] = []
        room = self._max_chars
        for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
            cut = len(line) - MAX_LINE
            row = f"{number}\t{line[:MAX_LINE]}" + (f" [{cut} characters more]" if cut > 0 else "")
            room -= len(row) + 1
            if room < 0 and rows:
                break
            rows.append(row)
        if not rows:
            return "(empty file)"
        last = offset + len(rows) - 1
        if len(rows) < len(lines):
            rows.append(f"[lines {offset} to {last} of {len(lines)}]")
        return "\n".join(rows)


async def text_of(workspace: Workspace, path: str) -> str:
    """The text of a file, for the model.

    Raises:
        BadArguments: there is no such file, or it is not a text file of moderate size.
    """
    try:
        data = await workspace.read(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise BadArguments(f"{path}: {error.strerror}") from error
    except ValueError:
        raise BadArguments(
            f"{path} has more than {MAX_BYTES} bytes: use the shell to read a part"
        ) from None
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8")
    except ValueError:
        raise BadArguments(f"{path} is a binary file ({len(data)} bytes)") from None


def read_tool(
    sandbox: str | AnySandbox = "auto",
    max_chars: int = 10_000,
    pool: WorkspacePool | None = None,
) -> ReadTool:
    """Make the ``read`` tool.

    Args:
        sandbox: a running sandbox, or the name of a backend for ``tools.sandbox.make_sandbox``.
        max_chars: maximum number of characters of a result.
        pool: workspaces that other tools use too, in place of ``sandbox``.

    Raises:
        ValueError: ``max_chars`` is less than 100.
    """
    return ReadTool(pool or pool_of(sandbox, max_chars=max_chars), max_chars=max_chars)
