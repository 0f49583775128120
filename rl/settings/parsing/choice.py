"""Settings whose value is chosen by name and then has its own settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Build = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Choice:
    """A setting whose value is chosen by name; each name has settings of its own.

    Args:
        resolve: returns, for a name, its dataclass, the dataclass's defaults, and a function that
            builds the value from the fields. Raises UnknownNameError for an unknown name.
        default: the default name.
        names: returns all names, for the help.
        implies: other settings that a name implies, by name and then by key.
        hidden: fields that commands set themselves. Help and suggestions do not show them.
    """

    resolve: Callable[[str], tuple[type[Any], Mapping[str, Any], Build]]
    default: str
    names: Callable[[], Sequence[str]]
    implies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
