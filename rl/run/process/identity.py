"""Check that the four package names, which are common ones, resolve to turnwise's packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("tools", "envs", "agents", "rl")


class PackageCollision(ImportError):
    """Raised when one of the four package names resolves to another distribution."""


def check_packages() -> None:
    """Refuse to start if a package name resolves to another project's package.

    Raises:
        PackageCollision: names the package and its path.
        SystemExit: the same in one line, if a command (``python -m rl.train``) is starting.
    """
    home = Path(__file__).resolve().parents[3]
    for name in PACKAGES:
        found = _found(name)
        if found != home / name / "__init__.py":
            message = (
                f"package {name!r} resolves to {found}, not to turnwise's under {home}: "
                f"start with python -P -m, from another folder, or without the other on PYTHONPATH"
            )
            # sys.argv while Python still looks for the command's module.
            if sys.argv[:1] == ["-m"]:
                raise SystemExit(f"error: {message}")
            raise PackageCollision(message)


def _found(name: str) -> Path | None:
    """The package's ``__init__.py``; of a namespace package its folder."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    paths = [spec.origin, *(spec.submodule_search_locations or [])]
    return next((Path(path).resolve() for path in paths if path), None)
