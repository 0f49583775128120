"""Detects packages of a user named ``tools`` or ``envs``, which hide turnwise's packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def check_tools() -> None:
    """Check that ``import tools`` imports turnwise's package.

    Raises:
        ImportError: another package hides turnwise's; the message names its path.
        SystemExit: another package hides turnwise's when a command (``python -m envs``) starts.
            The message has one line.
    """
    clash = describe_clash("tools")
    if clash is None:
        return
    # While Python resolves the module of a command, sys.argv[0] is "-m".
    if sys.argv[:1] == ["-m"]:
        raise SystemExit(f"error: {clash}")
    raise ImportError(clash)


def describe_clash(name: str) -> str | None:
    """An error message if another package hides turnwise's package, or None if none does."""
    home = Path(__file__).resolve().parents[2]
    spec = importlib.util.find_spec(name)
    # A folder without an __init__.py is a namespace package: no origin, only its folder.
    paths = [spec.origin, *(spec.submodule_search_locations or [])] if spec is not None else []
    found = next((Path(path).resolve() for path in paths if path), None)
    if found == home / name / "__init__.py":
        return None
    return (
        f"package {name!r} resolves to {found}, not to turnwise's under {home}: start with "
        f"python -P -m, from another folder, or without the other on PYTHONPATH"
    )
