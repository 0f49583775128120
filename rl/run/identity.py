"""Whether the four packages are ours: their names are common ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("tools", "envs", "agents", "rl")


class PackageCollision(ImportError):
    """Raised when one of the four package names resolves to another distribution."""


def check_packages() -> None:
    """Refuse to go on when an import of ours would get somebody else's package.

    Raises:
        PackageCollision: names the package and where it was found.
        SystemExit: the same in one line, where a command (``python -m rl.train``) is being started.
    """
    home = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        found = _found(name)
        if found != home / name / "__init__.py":
            told = (
                f"package {name!r} resolves to {found}, not to turnwise's under {home}: "
                f"start with python -P -m, from another folder, or without the other on PYTHONPATH"
            )
            # While Python looks for the module of a command, this is its name.
            if sys.argv[:1] == ["-m"]:
                raise SystemExit(f"error: {told}")
            raise PackageCollision(told)


def _found(name: str) -> Path | None:
    """The package's ``__init__.py``, or its folder where it has none: a namespace package."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    places = [spec.origin, *(spec.submodule_search_locations or [])]
    return next((Path(place).resolve() for place in places if place), None)
