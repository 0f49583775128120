"""Chat messages from agents: checked, normalised, and compared.

Histories are compared as messages, because sampled tokens are never encoded again. SDKs and
programs write the same message in several ways (a list of text parts, null fields, their own ids of
calls). Two messages are different only if a model would read them differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.capture.errors import ApiError, bad_request
from agents.capture.tool_calls import write_call

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ROLES |= {"tool": "tool"}
"""Roles of requests, and their names here; ``developer`` is OpenAI's newer name of ``system``."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request."""

    key: str
    """A key that is equal for messages that a model reads in the same way."""
    fields: Mapping[str, Any]
    """Fields for chat templates: the content is a text, and the arguments of a call are an
    object."""

    @property
    def role(self) -> str:
        """The message's role."""
        return str(self.fields["role"])

    @property
    def content(self) -> str:
        """The message's text, without tool calls."""
        return str(self.fields["content"])

    def rendered(self, *, takes_tools: bool) -> Mapping[str, Any]:
        """Fields for the chat template. If the template cannot write calls, they become text."""
        calls = self.fields.get("tool_calls")
        if takes_tools or not calls:
            return self.fields
        written = [write_call(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        texts = [self.content, *written] if self.content else written
        return {"role": self.role, "content": "\n".join(texts)}


def read_message(raw: object, index: int) -> Message:
    """Check the message at ``index`` of a request, and convert it.

    Raises:
        ApiError: the message is malformed, or has content other than text.
    """
    where = f"messages[{index}]"
    if not isinstance(raw, dict):
        raise bad_request(where, "must be an object with role and content")
    # SDKs return an assistant's message with empty fields: refusal, audio, ...
    given = {key: value for key, value in raw.items() if value not in (None, [], {})}
    role = ROLES.get(str(given.pop("role", None)))
    if role is None:
        raise bad_request(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    fields: dict[str, Any] = {"role": role, "content": _text(given.pop("content", ""), where)}
    if role == "assistant" and "tool_calls" in given:
        fields["tool_calls"] = _calls(given.pop("tool_calls"), where)
    for name in ("tool_call_id", "name"):
        if name in given:
            fields[name] = str(given.pop(name))
    if given:
        name = sorted(given)[0]
        raise bad_request(f"{where}.{name}", "is not supported: leave it out")
    return message_of(fields)


def message_of(fields: Mapping[str, Any]) -> Message:
    """The message with these fields, which are already in the form of :class:`Message`."""
    return Message(key_of(fields), fields)


def as_sampled(message: Message, calls: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Message:
    """The message, with the model's own arguments of calls to which the agent has added arguments.

    Claude Code adds the default values of missing arguments to the calls in its histories. The ids
    identify the calls. A call with changed or removed arguments stays as the agent sent it.

    Args:
        message: a message of a request.
        calls: name and arguments of the episode's recorded calls, by id.
    """
    written = message.fields.get("tool_calls", ())
    sampled = [_as_sampled(call, calls.get(call["id"])) for call in written]
    if sampled == [*written]:
        return message
    return message_of({**message.fields, "tool_calls": sampled})


def _as_sampled(
    call: dict[str, Any], recorded: tuple[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    name, given = call["function"]["name"], call["function"]["arguments"]
    if recorded is None or recorded[0] != name or not isinstance(given, dict):
        return call
    own = {**recorded[1]}
    kept = {key: value for key, value in given.items() if key in own}
    return call_field(call["id"], name, own) if _by_value(kept) == _by_value(own) else call


def key_of(fields: Mapping[str, Any]) -> str:
    """A key that is equal for messages that a model reads in the same way.

    The key depends neither on the ids of tool calls nor on how numbers are written.
    """
    calls = [
        [call["function"]["name"], _by_value(call["function"]["arguments"])]
        for call in fields.get("tool_calls", ())
    ]
    return json.dumps([fields["role"], fields["content"], calls])


def _by_value(arguments: object) -> str:
    """A text that is equal for equal JSON values. Numbers are doubles, as in JavaScript.

    An agent in JavaScript returns 1.0 as 1, and 1e3 as 1000.
    """
    # As JSON, because 1 equals true in Python.
    written = json.dumps(arguments, sort_keys=True)
    return json.dumps(json.loads(written, parse_int=_double, parse_float=_double))


def _double(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def answer_fields(content: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message in the form of :func:`read_message`."""
    fields: dict[str, Any] = {"role": "assistant", "content": content}
    return {**fields, "tool_calls": calls} if calls else fields


def _text(content: object, where: str) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where}.content", "must be a text or a list of parts")
    return "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise bad_request(where, 'must be {"type": "text", "text": ...}: the policy reads text alone')


def _calls(raw: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(raw, list):
        raise bad_request(f"{where}.tool_calls", "must be a list")
    return [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(raw)]


def _call(raw: object, where: str) -> dict[str, Any]:
    try:
        if not isinstance(raw, dict) or raw.get("type", "function") != "function":
            raise TypeError
        name, arguments = raw["function"]["name"], raw["function"].get("arguments") or "{}"
        if not isinstance(name, str):
            raise TypeError
    except (LookupError, TypeError, AttributeError):
        raise _no_call(where) from None
    return call_field(str(raw.get("id", "")), name, arguments)


def call_field(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """A tool call of an assistant's message. Arguments that are JSON as text become an object."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        # From another model, or edited: a template writes them unchanged.
        given = arguments
    function = {"name": name, "arguments": given}
    return {"id": call_id, "type": "function", "function": function}


def _no_call(where: str) -> ApiError:
    return bad_request(
        where, 'must be {"id": ..., "type": "function", "function": {"name", "arguments"}}'
    )
