"""The ``edit`` tool: replaces text in a file of an episode's workspace."""

from __future__ import annotations

from tools.builtin.read import text_of
from tools.builtin.workspaces import pool_of
from tools.sandbox import AnySandbox
from tools.tool import BadArguments, ToolContext, ToolResult
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool
from tools.workspace.workspace import Workspace

_SHOWN_LINES = 10
"""Maximum number of places to name."""


class EditTool(WorkspaceTool):
    """Replaces one text in a file by another, or makes a file.

    Args:
        pool: the workspaces of all episodes.
    """

    def __init__(self, pool: WorkspacePool) -> None:
        super().__init__(self._call, "edit", pool)

    async def _call(
        self,
        path: str,
        old_str: str,
        new_str: str,
        context: ToolContext,
        replace_all: bool = False,
    ) -> ToolResult:
        """Replace a text in a file. The text must occur exactly once, unless replace_all is true.

        Args:
            path: Path of the file, absolute or from the folder in which the shell starts.
            old_str: The text to replace, with its spaces and line breaks, without line numbers.
                Empty to make a new file.
            new_str: The text to put in its place, or the content of the new file.
            replace_all: Whether to replace every occurrence.
            context: names the episode.
        """
        if old_str == new_str:
            raise BadArguments("old_str and new_str are equal: nothing would change")
        async with self.workspace(context) as workspace:
            if not old_str:
                return await _make(workspace, path, new_str)
            text = await text_of(workspace, path)
            lines = _lines(text, old_str)
            if not lines:
                raise BadArguments(f"old_str does not occur in {path}: {_hint(text, old_str)}")
            where = f"line{'s' if len(lines) > 1 else ''} {_listed(lines)}"
            if len(lines) > 1 and not replace_all:
                raise BadArguments(
                    f"old_str occurs {len(lines)} times in {path} ({where}): add the lines around "
                    f"it, or set replace_all"
                )
            await write_text(workspace, path, text.replace(old_str, new_str))
        return ToolResult(f"Edited {path}, {where}.", data=lines)


def _lines(text: str, part: str) -> list[int]:
    """The numbers of the lines in which ``part`` begins."""
    found, at = list[int](), text.find(part)
    line, counted = 1, 0
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        found.append(line)
        at = text.find(part, at + len(part))
    return found


def _listed(lines: list[int]) -> str:
    more = ", ..." if len(lines) > _SHOWN_LINES else ""
    return ", ".join(map(str, lines[:_SHOWN_LINES])) + more


def _hint(text: str, part: str) -> str:
    """Why a text may not occur, in one phrase."""
    first = next((line.strip() for line in part.splitlines() if line.strip()), "")
    if first and any(first == line.strip() for line in text.splitlines()):
        return "compare the white space and the lines after the first"
    return "read the file again"


async def _make(workspace: Workspace, path: str, text: str) -> ToolResult:
    try:
        await workspace.read(path)
    except FileNotFoundError:
        await write_text(workspace, path, text)
        return ToolResult(f"Made {path}.")
    except (OSError, ValueError):
        pass  # something is there
    raise BadArguments(f"{path} exists: put the text to replace into old_str")


async def write_text(workspace: Workspace, path: str, text: str) -> None:
    """Write a file, for the model.

    Raises:
        BadArguments: the file cannot be written.
    """
    try:
        await workspace.write(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise BadArguments(f"{path}: {error.strerror}") from error


def edit_tool(sandbox: str | AnySandbox = "auto", pool: WorkspacePool | None = None) -> EditTool:
    """Make the ``edit`` tool.

    Args:
        sandbox: a running sandbox, or the name of a backend for ``tools.sandbox.make_sandbox``.
        pool: workspaces that other tools use too, in place of ``sandbox``.
    """
    return EditTool(pool or pool_of(sandbox))
