"""Reads reasoning from a model's text, and calls in any format of :mod:`tools.chat_calls`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.chat_calls import MISTRAL, PYTHON_TAG, chat_calls, first_chat_call, typed_call

_CALL = re.compile(r"<tool_call>(?:(?!<tool_call>).)*?</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Said:
    """A model's text, split into content and calls."""

    content: str
    """The text without calls. Malformed calls remain in it."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    """Name and arguments of each call, in order."""


def read_calls(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Said:
    """Extract the well-formed calls of a text.

    A text without calls stays unchanged, including white space.

    Args:
        text: the model's text.
        tools: the request's tools.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    if "<tool_call>" in text:
        return _read_tagged(text, schemas)
    calls = chat_calls(text)
    if not calls or any(call.error for call in calls):
        return Said(text, ())
    start = min((text.index(mark) for mark in (MISTRAL, PYTHON_TAG) if mark in text), default=0)
    left = text[:start] + text[calls[-1].end :]
    return Said(left.strip(), tuple((call.tool, call.arguments) for call in calls))


def split_reasoning(text: str, opening: str = "") -> tuple[str, str]:
    """Split a model's text into reasoning and answer, without the tags.

    A text without reasoning stays unchanged. Reasoning without an end is all of the text.

    Args:
        text: the model's text.
        opening: text before it that was not sampled; it may contain the opening tag.
    """
    whole = (opening + text).lstrip()
    if not whole.startswith("<think>"):
        return "", text
    reasoning, _, answer = whole.removeprefix("<think>").partition("</think>")
    return reasoning.strip(), answer.lstrip()


def _read_tagged(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Said:
    """Extract the calls between Hermes's tags. Malformed calls remain in the content."""
    calls: list[tuple[str, Mapping[str, Any]]] = []

    def take(found: re.Match[str]) -> str:
        call = first_chat_call(found[0])
        if call is None or call.error is not None:
            return found[0]
        call = typed_call(call, schemas.get(call.tool, {}))
        calls.append((call.tool, call.arguments))
        return ""

    left = _CALL.sub(take, text)
    return Said(left.strip() if calls else text, tuple(calls))


def write_call(name: str, arguments: Any) -> str:
    """A call as text, for chat templates that cannot write calls."""
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"
