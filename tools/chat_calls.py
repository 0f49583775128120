"""Parses tool calls in the formats of chat models' own templates. A message can have several.

Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. Qwen3-Coder:
``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``. Mistral:
``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]NAME[ARGS]{...}``. Llama 3:
``{"name": ..., "parameters": {...}}`` as the whole message, optionally after ``<|python_tag|>``.
GLM-4.5: ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``. Gemma 4:
``<|tool_call>call:NAME{KEY:<|"|>VALUE<|"|>}<tool_call|>``. gpt-oss:
``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tools.syntax import (
    CLOSES_CALL,
    MOST_MALFORMED,
    Call,
    Syntax,
    blank_reasoning,
    closed_at,
    json_at,
)

HERMES, MISTRAL, PYTHON_TAG = "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
GEMMA, HARMONY = "<|tool_call>", "to=functions."
_BARE = re.compile(r'\s*+\{\s*+"(?:name|type)"\s*+:')
_HERMES_TAG = re.compile(r"</?tool_call>")
_FUNCTION = re.compile(r"\s*+<function=([^>\s]++)>\s*")
_FUNCTION_END = re.compile(r"</function>\s*</tool_call>")
_PARAMETERS_END = re.compile(r"</parameter>\s*</function>\s*</tool_call>")
_PARAMETER = re.compile(r"(?:\A|</parameter>\s*)<parameter=([^>\s]+)>\n?")
_GLM_NAME = re.compile(r"\s*+([\w.-]++)(?:\n\s*+(?=</tool_call>)|\s*+(?=<arg_key>))")
_GEMMA_NAME = re.compile(r"call:([^\s{]++)\s*+(?=\{)")
_GEMMA_END, _GEMMA_QUOTE = "<tool_call|>", '<|"|>'
_GEMMA_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(?=\s*:)")
_HARMONY_NAME = re.compile(r"([\w.-]{1,200})[^{]{0,80}?<\|message\|>")
_HARMONY_HEADER = re.compile(r"(?:<\|start\|>assistant)?\s?(?:<\|channel\|>commentary)?\s?\Z")
_SEPARATORS = re.compile(r"[;\s]*")
_MISTRAL_NAMED = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\w++)?\[ARGS\]")
_WRONG = (
    "a call must be JSON, an object with the tool's name and its arguments, as your chat format has"
)


def chat_calls(text: str, opening: str = "") -> list[Call]:
    """All calls in a message, in order. For a malformed call, ``Call.error`` is set.

    Reasoning is not read.

    Args:
        text: the message.
        opening: as for ``tools.syntax.split_reasoning``.
    """
    text = blank_reasoning(text, opening)
    found = [(text.find(mark), mark) for mark in _READERS if mark]
    places = sorted((at, mark) for at, mark in found if at >= 0)
    if text.lstrip().startswith("{") and _BARE.match(text):
        places.insert(0, (0, ""))
    malformed = list[Call]()
    for at, mark in places:
        calls = list(_most(_READERS[mark](text, at)))
        # The mark of one format may stand in an argument of another.
        if any(call.error is None for call in calls):
            return calls
        malformed = malformed or calls
    return malformed


def _most(calls: Iterator[Call]) -> Iterator[Call]:
    """The calls up to the hundredth malformed one."""
    malformed = 0
    for call in calls:
        yield call
        malformed += call.error is not None
        if malformed == MOST_MALFORMED:
            return


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


def _hermes(text: str, at: int) -> Iterator[Call]:
    last = text.rfind(CLOSES_CALL)
    while at >= 0:
        call = _hermes_call(text, at, last)
        yield call
        at = text.find(HERMES, call.end)


def _hermes_call(text: str, start: int, last: int) -> Call:
    """The call whose opening tag is at index ``start``, as JSON or as XML.

    ``last`` is the index of the text's last closing tag.
    """
    at = start + len(HERMES)
    function = _FUNCTION.match(text, at) if start < last else None
    if function is not None and (found := _function_end(text, function.end())) is not None:
        given = _parameters(text[function.end() : found[0]])
        return Call(function[1], given, found[1], as_texts=True, start=start)
    if (named := _GLM_NAME.match(text, at)) and start < last:
        end = text.index(CLOSES_CALL, named.end())
        given = _glm_arguments(text[named.end() : end])
        return Call(named[1], given, end + len(CLOSES_CALL), as_texts=True, start=start)
    row, end = json_at(text, at)
    if (closed := closed_at(text, end, CLOSES_CALL)) >= 0:
        return _call(row, start, closed)
    tag = _HERMES_TAG.search(text, at if row is None else end)
    if tag is None:
        return _malformed(start, len(text))
    return _malformed(start, tag.end() if tag[0] == CLOSES_CALL else tag.start())


def _glm_arguments(body: str) -> dict[str, str]:
    pairs = (part.partition("</arg_key>") for part in body.split("<arg_key>")[1:])
    return {
        key.strip(): value.partition("<arg_value>")[2].rpartition("</arg_value>")[0]
        for key, _, value in pairs
    }


def _function_end(text: str, at: int) -> tuple[int, int] | None:
    """The ends of a function's body and of its call, or None if the call is not closed."""
    end = _FUNCTION_END.search(text, at)
    if end is None:
        return None
    # A value may hold the closing tags: the last ones before the next call count.
    following = text.find(HERMES, end.end())
    closings = _PARAMETERS_END.finditer(text, at, following if following >= 0 else len(text))
    for closed in closings:
        end = closed
    return end.start() + len("</parameter>") * (end.re is _PARAMETERS_END), end.end()


def _parameters(body: str) -> dict[str, str]:
    """The values of a function's parameters, as texts."""
    _, *found = _PARAMETER.split(body)
    if found:
        value, closed, _ = found[-1].rpartition("</parameter>")
        found[-1] = value if closed else found[-1]
    return {
        name: value.removesuffix("\n") for name, value in zip(found[::2], found[1::2], strict=True)
    }


def _mistral(text: str, at: int) -> Iterator[Call]:
    body = at + len(MISTRAL)
    named = _MISTRAL_NAMED.match(text, body)
    if named is None:
        rows, end = json_at(text, body)
        for row in rows if isinstance(rows, list) and rows else [rows]:
            yield _call(row, at, end)
        return
    while named is not None:
        arguments, end = json_at(text, named.end())
        yield _call({"name": named[1], "arguments": arguments}, at, end)
        at = text.find(MISTRAL, end)
        named = _MISTRAL_NAMED.match(text, at + len(MISTRAL)) if at >= 0 else None


def _gemma(text: str, at: int) -> Iterator[Call]:
    while at >= 0:
        body = at + len(GEMMA)
        named, end = _GEMMA_NAME.match(text, body), text.find(_GEMMA_END, body)
        if named is None or end < 0:
            yield _malformed(at, len(text) if end < 0 else end + len(_GEMMA_END))
        else:
            row = {"name": named[1], "arguments": _parsed(_as_json(text[named.end() : end]))}
            yield _call(row, at, end + len(_GEMMA_END))
        at = text.find(GEMMA, end) if end >= 0 else -1


def _as_json(text: str) -> str:
    """Gemma's arguments as JSON: between its quotes every character stands for itself."""
    parts = text.split(_GEMMA_QUOTE)
    for index, part in enumerate(parts):
        parts[index] = json.dumps(part) if index % 2 else _GEMMA_KEY.sub(r'\1"\2"', part)
    return "".join(parts)


def _harmony(text: str, at: int) -> Iterator[Call]:
    while at >= 0:
        header = _HARMONY_HEADER.search(text, max(0, at - 60), at)
        start = at if header is None else header.start()
        named = _HARMONY_NAME.match(text, at + len(HARMONY))
        end = at + len(HARMONY)
        # Without a message, the words are prose.
        if named is not None:
            arguments, end = json_at(text, named.end())
            yield _call({"name": named[1], "arguments": arguments}, start, end)
        at = text.find(HARMONY, end)


def _llama(text: str, at: int) -> Iterator[Call]:
    """The calls in a text of JSON objects, separated by semicolons."""
    body = _after_separators(text, at + len(PYTHON_TAG) * text.startswith(PYTHON_TAG, at))
    while body < len(text):
        row, end = json_at(text, body)
        yield _call(row, at, end)
        if row is None:
            return
        at, body = end, _after_separators(text, end)


def _after_separators(text: str, at: int) -> int:
    found = _SEPARATORS.match(text, at)
    return found.end() if found else at


_READERS: Mapping[str, Callable[[str, int], Iterator[Call]]] = {
    HERMES: _hermes,
    MISTRAL: _mistral,
    PYTHON_TAG: _llama,
    GEMMA: _gemma,
    HARMONY: _harmony,
    "": _llama,
}
"""Readers by the mark with which a format's first call starts. Llama's needs no mark."""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(row: Any, start: int, end: int) -> Call:
    if not isinstance(row, dict):
        return _malformed(start, end)
    name, arguments = row.get("name"), row.get("arguments", row.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _malformed(start, end)
    return Call(name, arguments, end, start=start)


def _malformed(start: int, end: int) -> Call:
    return Call("", {}, end, error=_WRONG, start=start)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The text as a JSON value; as a string if the schema allows one or the text is not JSON."""
    if any(kind.get("type") == "string" for kind in schema.get("anyOf", [schema])):
        return text
    value = _parsed(text)
    return text if value is None else value
