"""``tools.make``: tools by name, from here and from plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.registry import Registry, build
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


def replaced() -> int:
    """How often a tool took the place of its earlier version: what was made before may be old."""
    return _registry.replaced


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
    made = build("tool", name, found, options)
    if not isinstance(made, Tool):
        raise TypeError(f"tool {name!r}: its factory made {made!r}, which is not a Tool")
    return made
