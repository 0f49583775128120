"""Fields of settings that have a default of their own making."""

from __future__ import annotations

from typing import Any


def left_out() -> Any:
    """Stands for the default of a field that :func:`rl.settings.python.from_python` fills in."""
    raise AssertionError("settings are made by from_python's constructor")
