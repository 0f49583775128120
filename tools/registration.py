"""``tools.make``: tools by name, from here and from plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tools.registry import Registry, closest
from tools.tool import Tool

_registry = Registry("tool", "turnwise.tools")


def register(name: str, target: Tool | Callable[..., Tool] | str) -> None:
    """Register a tool, something that makes one, or ``"module:attribute"`` for either.

    Raises:
        ValueError: the name is taken.
    """
    _registry.register(name, target)


def names() -> list[str]:
    """Every known name, sorted."""
    return _registry.names()


def make(name: str, **options: Any) -> Tool:
    """The tool called ``name``: ``tools.make("search", retriever=library, top_n=3)``.

    Args:
        name: one of :func:`names`.
        options: what its factory takes.

    Raises:
        UnknownNameError: no such tool.
        PluginImportError: the plug-in that owns it fails to import.
        TypeError: no such option, or what the name stands for makes no tool.
    """
    found = _registry.get(name)
    if isinstance(found, Tool):
        if options:
            raise TypeError(f"tool {name!r} has no options, yet {sorted(options)[0]!r} was given")
        return found
    if not callable(found):
        raise TypeError(f"tool {name!r} is {found!r}: neither a Tool nor something that makes one")
    parameters = inspect.signature(found).parameters
    for option in options:
        if option not in parameters:
            hint = closest(option, parameters)
            meant = f" Did you mean {hint!r}?" if hint else ""
            known = ", ".join(parameters) or "none"
            raise TypeError(f"tool {name!r} has no option {option!r}.{meant} Known: {known}.")
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise TypeError(f"tool {name!r} needs the option {parameter.name!r}")
    made = found(**options)
    if not isinstance(made, Tool):
        raise TypeError(f"tool {name!r}: its factory made {made!r}, which is not a Tool")
    return made
