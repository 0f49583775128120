"""Configuration objects as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from rl.credit.plugin import PlugIn


def to_plain(value: Any) -> Any:
    """Nested dataclasses as nested dicts. A plug-in's dict has the plug-in's name under "name"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"name": value.name, **plain} if isinstance(value, PlugIn) else plain
    return value
