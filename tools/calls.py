"""Extends a syntax to arbitrary tools: instructions for the model, and parsers of calls.

A syntax has special forms for some tools (``Syntax.tools``). Other tools are called in the syntax's
general form: between tags with the tool's name, in a fenced block that starts with the name, or as
JSON. In tags and blocks, the call of a tool with one argument, or with one required text, holds
that argument as text; the call of any other tool holds JSON, and so does a call with optional
arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tools.syntax import FENCED_ARGUMENTS, Call, Syntax, fenced_call, tagged_call
from tools.tool import Tool

_TAG = re.compile(r"[A-Za-z][\w-]*")
_RESERVED = ("think", "answer", "result", "information", "interpreter", "code")
"""Tags that already have a meaning in at least one syntax."""
_CONTENT = "content"
"""Name of the argument in which the parsers of ``tools.syntax`` return a call's content."""

Parser = Callable[[str], Call | None]


def with_tools(syntax: Syntax, tools: Mapping[str, Tool]) -> Syntax:
    """Return ``syntax``, extended so that it parses calls of ``tools``.

    Args:
        syntax: one of ``tools.syntax.SYNTAXES``.
        tools: the tools by name.

    Raises:
        ValueError: a tool's name is not valid as a tag, or is a reserved tag.
    """
    others = {name: tool for name, tool in tools.items() if name not in syntax.tools}
    for name in others:
        if not _TAG.fullmatch(name):
            raise ValueError(f"tool {name!r} needs a name of letters, digits, _ and - to be called")
        if name in _RESERVED and syntax.form == "tags":
            raise ValueError(f"tool {name!r} needs another name: the tag <{name}> is reserved")
    if not others or syntax.form in ("json", "chat"):
        return syntax
    if syntax.form == "fence":
        find = fenced_call({**FENCED_ARGUMENTS, **dict.fromkeys(others, _CONTENT)})
        return replace(syntax, parse=_reading(find, others))
    tagged = [tagged_call(name, tool=name, argument=_CONTENT) for name in others]
    return replace(
        syntax,
        stop=(*syntax.stop, *(f"</{name}>" for name in others)),
        parse=_reading(_first([syntax.parse, *tagged]), others),
    )


def tool_rules(syntax: Syntax, tools: Mapping[str, Tool]) -> str:
    """Text for a system message: how to call the tools that have no special form in ``syntax``."""
    others = [tool for name, tool in tools.items() if name not in syntax.tools]
    if syntax.form == "chat":
        return ""
    if syntax.form == "json":
        schemas = "\n".join(json.dumps(schema_of(tool)) for tool in others)
        return f"You may call these functions, too:\n<tools>\n{schemas}\n</tools>" if others else ""
    return "\n".join(_rule(syntax, tool) for tool in others)


def listed(schemas: Sequence[Mapping[str, Any]]) -> str:
    """A list of tools in Hermes's format, for models whose chat template does not list tools."""
    rows = "\n".join(json.dumps(schema) for schema in schemas)
    return (
        f"You may call these functions:\n<tools>\n{rows}\n</tools>\nFor each call, write\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\nResults come between '
        "<tool_response> and </tool_response>."
    )


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of a call, in the format that :func:`listed` describes."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def schema_of(tool: Tool) -> dict[str, Any]:
    """The tool's entry in OpenAI's format for lists of tools, which chat templates and APIs use."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _rule(syntax: Syntax, tool: Tool) -> str:
    """Instructions for calling one tool, with the tool's description."""
    schema = tool.parameters
    properties, required = schema.get("properties", {}), schema.get("required", ())
    kinds = {name: _type(part, schema) for name, part in properties.items()}
    forms = [only] if (only := _only(tool)) else []
    if len(properties) > len(forms) or not properties:
        forms.append(json.dumps(kinds, ensure_ascii=False))
    fenced = syntax.form == "fence"
    call = " or ".join(
        f"```{tool.name}\n{inside}\n```" if fenced else f"<{tool.name}> {inside} </{tool.name}>"
        for inside in forms
    )
    meant = [
        f"{name}{'' if name in required else ' (optional)'}: {part['description']}"
        for name, part in properties.items()
        if part.get("description")
    ]
    words = " ".join([" ".join(tool.description.split()), *meant])
    return f"To call {tool.name}, write {call} and read what stands after it. {words}"


def _only(tool: Tool) -> str | None:
    """The name of the argument that a call can hold as it is, or None if there is none.

    This is the tool's only argument, or its only required one if that is a text.
    """
    properties = tool.parameters.get("properties", {})
    if len(properties) == 1:
        return str(next(iter(properties)))
    required = tool.parameters.get("required", ())
    if len(required) != 1 or properties[required[0]].get("type") != "string":
        return None
    return str(required[0])


def _type(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """An argument's JSON types or allowed values, as text. ``part`` is its part of ``schema``."""
    kinds = list[str]()
    for kind in part.get("anyOf", [part]):
        name = str(kind.get("$ref", "")).rpartition("/")[2]
        known = schema.get("$defs", {}).get(name, kind)
        kinds += map(str, known.get("enum") or [known.get("type", "value")])
    return " or ".join(kind for kind in kinds if kind != "null")


def _first(parsers: list[Parser]) -> Parser:
    """A parser that runs all ``parsers`` and returns the call that ends first in the text."""

    def parse(text: str) -> Call | None:
        found = [call for parser in parsers if (call := parser(text)) is not None]
        return min(found, key=lambda call: call.end, default=None)

    return parse


def _reading(find: Parser, tools: Mapping[str, Tool]) -> Parser:
    """A parser that finds a call by ``find`` and, for a tool in ``tools``, parses its arguments."""

    def parse(text: str) -> Call | None:
        call = find(text)
        if call is None or call.tool not in tools:
            return call
        return _read(call, tools[call.tool])

    return parse


def _named_arguments(
    content: str, properties: Mapping[str, Any], only: str
) -> dict[str, Any] | None:
    """The arguments that a JSON object names; None if the content is no such object."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    known = isinstance(value, dict) and only in value and value.keys() <= properties.keys()
    return value if known else None


def _read(call: Call, tool: Tool) -> Call:
    content, only = str(call.arguments[_CONTENT]), _only(tool)
    properties = tool.parameters.get("properties", {})
    if only is not None and properties[only].get("type") == "string":
        given = _named_arguments(content, properties, only) if len(properties) > 1 else None
        return replace(call, arguments={only: content} if given is None else given)
    try:
        value = json.loads(content or "{}")
    except (ValueError, RecursionError):
        value = content
    if only is not None and not (isinstance(value, dict) and only in value):
        return replace(call, arguments={only: value})
    if isinstance(value, dict):
        return replace(call, arguments=value)
    names = ", ".join(tool.parameters.get("properties", {})) or "nothing"
    wrong = f"{tool.name} takes its arguments as JSON, an object with {names}"
    return replace(call, tool="", arguments={}, error=wrong)
