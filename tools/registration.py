"""``tools.make``: tools by name, from here and from plug-ins."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.registry import Registry, build
from tools.tool import Tool

_NAME = re.compile(r"\s*([A-Za-z][\w.-]*)\s*")
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


def make_tools(text: str, key: str = "tools") -> dict[str, Tool]:
    """The tools that a text names, by the names that a model calls them by.

    Args:
        text: registered names, each with options in parentheses if it has some, between commas.
        key: the setting it is the value of, for messages.

    Raises:
        ValueError: it is something else, an option is wrong, or two tools have one name.
        UnknownNameError: a name is not registered.
        PluginImportError: the plug-in that owns a name fails to import.
    """
    made: dict[str, Tool] = {}
    try:
        for name, options in named(text):
            tool = make(name, **options)
            if tool.name in made:
                raise ValueError(f"two of them are called {tool.name!r}")
            made[tool.name] = tool
    except (SyntaxError, TypeError, ValueError) as error:
        why = "expected names such as calculator, lookup(limit=3)"
        raise ValueError(
            f"{key} ({text}): {why if isinstance(error, SyntaxError) else error}"
        ) from error
    return made


def named(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each name with its options.

    Raises:
        SyntaxError: the text is something else.
        ValueError: an option's value is no plain value.
    """
    at = 0
    while text.strip():  # No tools at all, or one at a time until the text is read.
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
    """Where the parentheses that open at ``start`` end, and what stands in them."""
    end = start
    while (end := text.find(")", end) + 1) > 0:
        try:
            call = ast.parse(f"f{text[start:end]}", mode="eval").body
        except SyntaxError:
            continue  # This one stands inside a value.
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
