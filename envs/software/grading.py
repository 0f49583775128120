"""Grading of a repository: its modules, loaded in a fresh sandbox that holds no test."""

from __future__ import annotations

from collections.abc import Mapping

from tools.tool import ToolContext, ToolResult
from tools.workspace.pool import WorkspacePool
from tools.workspace.tool import WorkspaceTool

ENTRY_POINT = "answer"
MAX_MODULE_BYTES = 1 << 18
_BUNDLE = """\
import importlib.abc, importlib.util, sys

modules = {modules!r}


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in modules else None

    def exec_module(self, module):
        exec(compile(modules[module.__name__], module.__name__ + ".py", "exec"), vars(module))


sys.meta_path.insert(0, Loader())


def {entry_point}(*args):
    import main

    return main.{name}(*args)
"""


def bundle(modules: Mapping[str, str], name: str) -> str:
    """One program that holds the modules and calls ``name`` of ``main.py``.

    Args:
        modules: sources by path; a module that is missing cannot be imported.
        name: the function to call.
    """
    by_name = {path.removesuffix(".py"): text for path, text in modules.items()}
    return _BUNDLE.format(modules=by_name, entry_point=ENTRY_POINT, name=name)


class CollectTool(WorkspaceTool):
    """Reads the files to grade. No agent can call it.

    It is a tool so that the record of an episode holds the files, and a replay grades the same.
    """

    stateful = False

    def __init__(self, pool: WorkspacePool) -> None:
        super().__init__(self._collect, "collect", pool)

    async def _collect(self, paths: list[str], context: ToolContext) -> ToolResult:
        """Read files. What is no regular file of moderate size is left out.

        Args:
            paths: Paths of the files.
            context: names the episode.
        """
        texts: dict[str, str] = {}
        async with self.workspace(context) as workspace:
            for path in paths:
                try:
                    data = await workspace.read(path, max_bytes=MAX_MODULE_BYTES)
                except (OSError, ValueError):
                    continue
                texts[path] = data.decode("utf-8", "replace")
        return ToolResult(f"{len(texts)} files", data=texts)
