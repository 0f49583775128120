"""Checks that settings make of their own fields."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal

from tools.registry import closest


def require(key: str, value: Any, fine: bool, expected: str) -> None:
    """Refuse a value.

    Raises:
        ValueError: it is not ``fine``; names the key, the value and what was expected.
    """
    if not fine:
        raise ValueError(f"{key} ({value}) must be {expected}")


def check_fields(settings: Any) -> None:
    """Refuse numbers that are not finite, and names that a ``Literal`` does not list.

    Raises:
        ValueError: names the field.
    """
    hints = typing.get_type_hints(type(settings))
    for field in fields(settings):
        key, value, hint = field.name, getattr(settings, field.name), hints[field.name]
        require(key, value, not isinstance(value, float) or math.isfinite(value), "finite")
        if typing.get_origin(hint) is Literal:
            names = typing.get_args(hint)
            require(key, value, value in names, f"one of {', '.join(names)}")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that do not exist.

    Raises:
        ValueError: names the option, the one most like it, and all there are.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = closest(name, known)
            meant = f" Did you mean {hint!r}?" if hint else ""
            listed = ", ".join(known) or "none"
            raise ValueError(f"{what} has no option {name!r}.{meant} Known: {listed}.")
