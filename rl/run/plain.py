"""Configuration objects as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any


def to_plain(value: Any) -> Any:
    """Nested dataclasses as nested dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value
