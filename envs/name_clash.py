"""Whether packages are turnwise's own: their names are common ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def check_tools() -> None:
    """Refuse to go on where ``import tools`` would get another package.

    Raises:
        ImportError: names where that package is.
        SystemExit: the same in one line, where a command (``python -m envs``) is being started.
    """
    told = foreign("tools")
    if told is None:
        return
    # While Python looks for the module of a command, this is its name.
    if sys.argv[:1] == ["-m"]:
        raise SystemExit(f"error: {told}")
    raise ImportError(told)


def foreign(name: str) -> str | None:
    """A line that says where another package of this name is; None: it is turnwise's."""
    home = Path(__file__).resolve().parents[1]
    spec = importlib.util.find_spec(name)
    # A folder without an __init__.py is a namespace package: it has no origin, only its folder.
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec is not None else []
    found = next((Path(place).resolve() for place in places if place), None)
    if found == home / name / "__init__.py":
        return None
    return (
        f"package {name!r} resolves to {found}, not to turnwise's under {home}: start with "
        f"python -P -m, from another folder, or without the other on PYTHONPATH"
    )
