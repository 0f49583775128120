"""Settings that are chosen by name and then have settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Build = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Choice:
    """A field that is chosen by name and then has fields of its own.

    Args:
        resolve: maps a name to its dataclass, the dataclass's defaults, and a function that builds
            the value from the fields. Raises UnknownNameError for an unknown name.
        default: the default name.
        names: returns all names, for the help.
        implies: by name, other settings that the name implies, from key to text.
        hidden: fields that commands set themselves; neither help nor suggestions show them.
    """

    resolve: Callable[[str], tuple[type[Any], Mapping[str, Any], Build]]
    default: str
    names: Callable[[], Sequence[str]]
    implies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
