"""Parses tool calls in the formats of chat models' own templates. A message can have several.

Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. Qwen3-Coder:
``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``. Mistral:
``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]NAME[ARGS]{...}``. Llama 3:
``{"name": ..., "parameters": {...}}`` as the whole message, optionally after ``<|python_tag|>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tools.syntax import Call, Syntax

_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
MISTRAL = "[TOOL_CALLS]"
_MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
PYTHON_TAG = "<|python_tag|>"
_WRONG = (
    "a call must be JSON, an object with the tool's name and its arguments, as your chat format has"
)
_DECODER = json.JSONDecoder()


def chat_calls(text: str) -> list[Call]:
    """All calls in a message, in order. For a malformed call, ``Call.error`` is set."""
    if "<tool_call>" in text:
        return [_hermes(found) for found in _HERMES.finditer(text)]
    if MISTRAL in text:
        return list(_mistral(text, text.index(MISTRAL) + len(MISTRAL)))
    return list(_llama(text))


def typed_call(call: Call, parameters: Mapping[str, Any]) -> Call:
    """The call with its arguments converted to the types in the tool's JSON Schema."""
    if not call.as_texts:
        return call
    properties = parameters.get("properties", {})
    arguments = {key: _value(text, properties.get(key, {})) for key, text in call.arguments.items()}
    return replace(call, arguments=arguments, as_texts=False)


def first_chat_call(text: str) -> Call | None:
    """The first call in a message, or None."""
    return next(iter(chat_calls(text)), None)


CHAT = Syntax(
    name="chat",
    stop=(),
    parse=first_chat_call,
    wrap=lambda result: result,
    continues=False,
    tools=(),
    form="chat",
    find_all=chat_calls,
)
"""The model's own format, in which the chat template renders the tools, calls and results."""


def _hermes(found: re.Match[str]) -> Call:
    function = _FUNCTION.fullmatch(found[1])
    if not found[2]:
        return _malformed(found.end())
    if function is not None:
        arguments = dict(_PARAMETER.findall(function[2]))
        return Call(function[1], arguments, found.end(), as_texts=True)
    return _call(_parsed(found[1]), found.end())


def _mistral(text: str, at: int) -> Iterator[Call]:
    named = _MISTRAL_NAMED.match(text, at)
    if named is None:
        rows, end = _decoded(text, at)
        for row in rows if isinstance(rows, list) and rows else [rows]:
            yield _call(row, end)
        return
    while named is not None:
        arguments, end = _decoded(text, named.end())
        yield _call({"name": named[1], "arguments": arguments}, end)
        following = text.find(MISTRAL, end)
        named = _MISTRAL_NAMED.match(text, following + len(MISTRAL)) if following >= 0 else None


def _llama(text: str) -> Iterator[Call]:
    """The calls in a message that consists only of JSON objects, separated by semicolons."""
    tagged = PYTHON_TAG in text
    at = text.index(PYTHON_TAG) + len(PYTHON_TAG) if tagged else 0
    if not tagged and not re.match(r'\s*\{\s*"(?:name|type)"\s*:', text):
        return
    while at < len(text) and text[at:].strip():
        row, end = _decoded(text, at)
        yield _call(row, end)
        if row is None:
            return
        at = end + len(text[end:]) - len(text[end:].lstrip("; \n\t"))


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at index ``at``, and its end.

    If it is invalid: None, and the text's length.
    """
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, len(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(row: Any, end: int) -> Call:
    if not isinstance(row, dict):
        return _malformed(end)
    name, arguments = row.get("name"), row.get("arguments", row.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _malformed(end)
    return Call(name, arguments, end)


def _malformed(end: int) -> Call:
    return Call("", {}, end, error=_WRONG)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The text as a JSON value; as a string if the schema allows one or the text is not JSON."""
    if any(kind.get("type") == "string" for kind in schema.get("anyOf", [schema])):
        return text
    value = _parsed(text)
    return text if value is None else value
