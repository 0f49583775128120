"""A setting whose value is chosen by name and then has settings of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Build = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Choice:
    """A field whose value is chosen by name and then has fields of its own.

    Args:
        resolve: from a name to (the dataclass that the name stands for, its own defaults, and how
            to build the value from its fields). Raises UnknownNameError for a name it lacks.
        default: the name when none is given.
        names: the names there are, for the help.
        brings: other settings that a name stands for, from key to text.
        hidden: fields that commands set themselves: neither help nor suggestions name them.
    """

    resolve: Callable[[str], tuple[type[Any], Mapping[str, Any], Build]]
    default: str
    names: Callable[[], Sequence[str]]
    brings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
