"""``tools.make``: makes built-in tools, and tools of plug-ins, by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.registry import Registry, build
from tools.tool import Tool

_NAME = re.compile(r"\s*([^\s,():]+\.py:\w+|[A-Za-z][\w.-]*(?::\w+)?)\s*")
_registry = Registry("tool", "turnwise.tools")


def register(name: str, target: Tool | Callable[..., Tool] | str) -> None:
    """Register a tool or a function that makes one, as an object or as ``"module:attribute"``.

    Raises:
        ValueError: the name is taken.
    """
    _registry.register(name, target)


def names() -> list[str]:
    """All names of tools, sorted, including those of plug-ins."""
    return _registry.names()


def replaced() -> int:
    """Number of times that a newer version replaced a registered tool. Caches of tools check it."""
    return _registry.replaced


def make(name: str, **options: Any) -> Tool:
    """Make the tool called ``name``: ``tools.make("search", retriever=library, top_n=3)``.

    Args:
        name: one of :func:`names`.
        options: arguments of the tool's factory.

    Raises:
        UnknownNameError: there is no such tool.
        PluginImportError: the tool's plug-in fails to import.
        TypeError: the tool has no such option, or the registered function returns no tool.
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


def make_tools(text: str, key: str = "tools") -> dict[str, Tool]:
    """Make the tools that a text such as ``calculator, lookup(limit=3)`` names.

    Returns them by name.

    Args:
        text: registered names separated by commas, each with options in parentheses if needed.
        key: the setting with this value, for messages.

    Raises:
        ValueError: the text is malformed, an option is wrong, or two tools have the same name.
        UnknownNameError: a name is not registered.
        PluginImportError: the plug-in that registers a name fails to import.
    """
    made: dict[str, Tool] = {}
    try:
        for name, options in named(text):
            tool = make(name, **options)
            if tool.name in made:
                raise ValueError(f"two of them are called {tool.name!r}")
            tool.join(made.values())
            made[tool.name] = tool
    except (SyntaxError, TypeError, ValueError) as error:
        why = "expected names such as calculator, lookup(limit=3)"
        raise ValueError(
            f"{key} ({text}): {why if isinstance(error, SyntaxError) else error}"
        ) from error
    return made


def named(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The names in a text such as ``calculator, lookup(limit=3)``, each with its options.

    Raises:
        SyntaxError: the text is malformed.
        ValueError: an option's value is not a literal.
    """
    at = 0
    while text.strip():
        name = _NAME.match(text, at)
        if name is None:
            raise SyntaxError
        at = name.end()
        options: Mapping[str, Any] = {}
        if text.startswith("(", at):
            at, options = _options(text, at)
        if at == len(text):
            yield name[1], options
            return
        if text[at] != ",":
            raise SyntaxError
        yield name[1], options
        at += 1


def _options(text: str, start: int) -> tuple[int, Mapping[str, Any]]:
    """The index after the parentheses that open at ``start``, and the options inside."""
    end = start
    while (end := text.find(")", end) + 1) > 0:
        try:
            call = ast.parse(f"f{text[start:end]}", mode="eval").body
        except SyntaxError:
            continue  # This parenthesis is inside a value.
        if not isinstance(call, ast.Call) or call.args or None in [k.arg for k in call.keywords]:
            break
        options: dict[str, Any] = {}
        for keyword in call.keywords:
            key = str(keyword.arg)
            if key in options:
                raise ValueError(f"{key} is given twice")
            options[key] = ast.literal_eval(keyword.value)
        return end + len(text[end:]) - len(text[end:].lstrip()), options
    raise SyntaxError
