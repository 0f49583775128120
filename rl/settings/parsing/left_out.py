"""Default of settings that the constructor fills in."""

from __future__ import annotations

from typing import Any


def left_out() -> Any:
    """Default of a field that ``from_python`` fills in; never called."""
    raise AssertionError("settings are made by from_python's constructor")
