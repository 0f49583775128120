"""Where an environment's own code raised an error: exception, function, file and line."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from envs.env import TextEnv
from envs.tool_env import ToolEnv

_GOLD = "gold_of.<locals>.<lambda>"
"""The function of ``envs.play`` that calls a gold policy."""
_SHARED_FOLDERS = ("site-packages", "dist-packages")
"""Folders in which files beside each other belong to different distributions."""


def raised(error: BaseException, env_type: type[TextEnv[Any, Any]]) -> str:
    """One line that names the exception and the place in the environment's code that raised it.

    If no code of the environment was running, the line quotes the check's statement that failed.
    """
    what = f"raised {' '.join(f'{type(error).__name__}: {error}'.split())[:500]}"
    calls = list(traceback.walk_tb(error.__traceback__))
    own = [at for at, (frame, _) in enumerate(calls) if _is_own(frame, env_type)]
    if isinstance(error, SyntaxError) or not calls:
        return what  # The message of a SyntaxError names file and line.
    if not own:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # Messages of this package's own raise statements need no place.
        explained = (last.line or "raise").startswith("raise")
        return (
            what if explained else f"{what} in {last.line!r} ({last.filename}, line {last.lineno})"
        )
    outer, (inner, line) = calls[own[0]][0], calls[own[-1]]
    caller, where = _name(outer), _name(inner)
    if own[0] and calls[own[0] - 1][0].f_code.co_qualname == _GOLD and "gold_policy" not in caller:
        caller = f"{caller} of gold_policy"
    if where != _name(outer):
        caller = f"{where}, called by {caller}"
    return f"{what} in {caller} ({inner.f_code.co_filename}, line {line})"


def _name(frame: FrameType) -> str:
    """The function of a frame; of a function inside another one, the outer one."""
    return re.sub(r"\.<locals>.*", "", frame.f_code.co_qualname)


def _is_own(frame: FrameType, env_type: type[TextEnv[Any, Any]]) -> bool:
    """Whether a frame runs code of the environment's package, its file, or a file beside it."""
    name, file = frame.f_globals.get("__name__", ""), Path(frame.f_code.co_filename)
    for kind in env_type.__mro__:
        if kind in (TextEnv, ToolEnv) or not issubclass(kind, TextEnv):
            continue
        package = kind.__module__.rpartition(".")[0]
        if not package.startswith("envs."):  # The built-in environments share a package.
            package = package.partition(".")[0]
        source = getattr(sys.modules.get(kind.__module__), "__file__", None)
        folder = Path(source).parent if source else None
        if (
            name == kind.__module__
            or (package and f"{name}.".startswith(f"{package}."))
            or (folder == file.parent and file.parent.name not in _SHARED_FOLDERS)
        ):
            return True
    return False
