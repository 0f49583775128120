"""Whether ``tools`` is turnwise's own package: the name is a common one."""

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
    home = Path(__file__).resolve().parents[1]
    spec = importlib.util.find_spec("tools")
    # A folder without an __init__.py is a namespace package: it has no origin, only its folder.
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec is not None else []
    found = next((Path(place).resolve() for place in places if place), None)
    if found == home / "tools" / "__init__.py":
        return
    told = (
        f"package 'tools' resolves to {found}, not to turnwise's under {home}: start with "
        f"python -P -m, from another folder, or without the other on PYTHONPATH"
    )
    # While Python looks for the module of a command, this is its name.
    if sys.argv[:1] == ["-m"]:
        raise SystemExit(f"error: {told}")
    raise ImportError(told)
