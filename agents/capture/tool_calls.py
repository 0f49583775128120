"""Reads the calls of a model's text, in any format of :mod:`tools.chat_calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.chat_calls import HERMES, chat_calls, typed_call


@dataclass(frozen=True, slots=True)
class Said:
    """A model's text, split into content and calls."""

    content: str
    """The text without calls. Malformed calls remain in it."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    """Name and arguments of each call, in order."""


def read_calls(text: str, tools: Sequence[Mapping[str, Any]] = (), opening: str = "") -> Said:
    """Extract the well-formed calls of a text. Reasoning stays in the content, with its calls.

    A text without calls stays unchanged, including white space.

    Args:
        text: the model's text.
        tools: the request's tools.
        opening: as for ``tools.syntax.split_reasoning``.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    found = chat_calls(text, opening)
    calls = [call for call in found if call.error is None]
    tagged = bool(calls) and text.startswith(HERMES, calls[0].start)
    if not calls or (len(calls) < len(found) and not tagged):
        return Said(text, ())
    content, at = "", 0
    for call in calls:
        content += text[at : call.start]
        at = call.end
    typed = [typed_call(call, schemas.get(call.tool, {})) for call in calls]
    left = (content + text[at:]).strip()
    return Said(left, tuple((call.tool, call.arguments) for call in typed))


def write_call(name: str, arguments: Any) -> str:
    """A call as text, for chat templates that cannot write calls."""
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"
