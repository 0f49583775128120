"""Checks that ``tools``, ``envs``, ``agents`` and ``rl`` are imported from turnwise.

Other projects have packages of the same names.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("tools", "envs", "agents", "rl")


class PackageCollision(ImportError):
    """Raised when ``tools``, ``envs``, ``agents`` or ``rl`` is another project's package."""


def check_packages() -> None:
    """Check that no package name is imported from another project.

    Raises:
        PackageCollision: another project's package is imported. The message names it and its path.
        SystemExit: such a package is imported while a command (``python -m rl.train``) starts. The
            message has one line.
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
    """The package's ``__init__.py`` or, for a namespace package, its folder."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    paths = [spec.origin, *(spec.submodule_search_locations or [])]
    return next((Path(path).resolve() for path in paths if path), None)
