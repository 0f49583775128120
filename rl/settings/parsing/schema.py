"""Converts a dataclass of settings to the chz class that reads its values, and back.

The dataclasses stay plain. Only this package imports chz.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

import chz
from chz.factories import MetaFactory
from chz.tiepin import CastError

from rl.errors import UsageError
from rl.settings.parsing.choice import Build, Choice
from tools.field_docs import field_docs

MODULE = __name__
"""The ``__module__`` of the chz classes, by which help and errors recognise them."""
_BUILDERS: dict[type[Any], Build] = {}


class Named(MetaFactory):
    """A chz factory for a value that is chosen by name.

    Args:
        choice: the choice.
        own: the default value of the field, which is a plug-in with its options, or None for the
            choice's default.
    """

    def __init__(self, choice: Choice, own: Any = None) -> None:
        super().__init__()
        self.choice = choice
        self.own = own
        self.default: str = choice.default if own is None else own.name

    def unspecified_factory(self) -> Callable[..., Any]:
        """The chz class with the settings of the default name."""
        return self.from_string(self.default)

    def from_string(self, factory: str) -> Callable[..., Any]:
        """The chz class with the settings of a name."""
        config_type, defaults, build = self.choice.resolve(factory)
        if self.own is not None and factory == self.default:
            defaults = _values_of(self.own)
        return chz_class(config_type, build, defaults)

    def perform_cast(self, value: str) -> Any:
        """Reject a value that stands where a name is expected."""
        raise CastError(f"{value!r} has settings of its own")


def chz_class(
    config_type: type[Any], build: Callable[..., Any], defaults: Mapping[str, Any]
) -> type[Any]:
    """A chz class with a dataclass's fields. :func:`built` passes their values to ``build``."""
    docs, hints = field_docs(config_type), typing.get_type_hints(config_type)
    body: dict[str, Any] = {"__annotations__": {}, "__module__": MODULE}
    for field in dataclasses.fields(config_type):
        hint: Any = hints[field.name]
        arguments: dict[str, Any] = {"doc": docs.get(field.name, "")}
        choice = field.metadata.get("choice")
        if choice is not None:
            own = defaults.get(field.name)
            hint, arguments["meta_factory"] = object, Named(choice, own)
        elif dataclasses.is_dataclass(hint):
            nested = typing.cast("type[Any]", hint)
            own = field.metadata.get("defaults", {})
            if field.name in defaults:
                own = _values_of(defaults[field.name])
            hint = chz_class(nested, nested, own)
            arguments["blueprint_unspecified"] = hint
        elif field.name in defaults:
            arguments["default"] = defaults[field.name]
        elif field.default is not dataclasses.MISSING:
            arguments["default"] = field.default
        if field.metadata.get("infinite"):
            arguments["metadata"] = {"infinite": True}
        body["__annotations__"][field.name] = hint
        body[field.name] = chz.field(**arguments)
    made = chz.chz(type(config_type.__name__, (), body))
    _BUILDERS[made] = build if build is not config_type else _by_fields(config_type)
    return made


def built(value: Any, path: str = "") -> Any:
    """The settings that a chz object holds. Nested settings are built first.

    Raises:
        UsageError: a value is out of range.
    """
    build = _BUILDERS.get(type(value))
    if build is None:
        return value
    prefix = f"{path}." if path else ""
    names = chz.chz_fields(value)
    fields = {name: built(getattr(value, name), prefix + name) for name in names}
    try:
        made = build(fields)
    except UsageError:
        raise
    # The dataclass names its own field first: "clip_high (-1) must be >= 0".
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error
    for name, number in fields.items():
        if isinstance(number, float) and not math.isfinite(number):
            _check_infinite(prefix + name, number, names[name])
    return made


def _check_infinite(key: str, number: float, field: Any) -> None:
    """Check a number that is not finite.

    Raises:
        UsageError: infinity is neither the setting's default nor allowed by its metadata.
    """
    if math.isnan(number) or not (field.metadata or number == field._default):
        raise UsageError(f"{key} ({number}) must be finite")


def _values_of(settings: Any) -> dict[str, Any]:
    return {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}


def _by_fields(config_type: type[Any]) -> Build:
    return lambda values: config_type(**values)
