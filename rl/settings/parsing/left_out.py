"""The default of settings that a constructor fills in."""

from __future__ import annotations

from typing import Any


def left_out() -> Any:
    """Default factory of a field that ``from_python`` fills in. It is never called."""
    raise AssertionError("settings are made by from_python's constructor")
