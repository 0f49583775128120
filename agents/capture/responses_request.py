"""Reads requests of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.capture.errors import ApiError, bad_request, warn_once
from agents.capture.messages import ROLES, Message, answer_fields, call_field, message_of
from agents.capture.request import ChatRequest, count_of, fields_of, typed

_NO_EFFECT = (
    *("client_metadata", "include", "max_tool_calls", "metadata", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier"),
    *("service_tier", "store", "stream_options", "top_logprobs", "truncation", "user"),
)
"""Fields that have no effect on an answer here."""
_OVERRULED = ("temperature", "top_p")
"""Fields that the run overrides, because training needs tokens sampled with the run's settings."""
_UNSUPPORTED = ("background", "context_management", "conversation", "prompt")
"""Fields that would change the answer, and that the endpoint cannot follow."""
_TEXTS = ("input_text", "output_text", "text", "refusal")
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
INPUT = "input"
"""The only parameter of a custom tool, which takes a text instead of JSON."""


class ResponseStore:
    """The items of an episode's responses, for ``previous_response_id`` and ``item_reference``."""

    def __init__(self) -> None:
        self._conversations: dict[str, list[Any]] = {}
        self._items: dict[str, Any] = {}

    def keep(self, response: Mapping[str, Any], given: Sequence[Any]) -> None:
        """Store a response and the items of its request."""
        self._conversations[response["id"]] = [*given, *response["output"]]
        self._items |= {item["id"]: item for item in response["output"]}

    def items(self, body: object) -> list[Any]:
        """All items of a request's conversation, the stored ones first.

        Raises:
            ApiError: the request names a response or an item that does not exist.
        """
        given = fields_of(body)
        raw, previous = given.get("input"), given.get("previous_response_id")
        if isinstance(raw, str):
            raw = [{"role": "user", "content": raw}]
        if not isinstance(raw, list):
            raise bad_request("input", "must be a text or a list of items")
        if previous is not None and previous not in self._conversations:
            problem = f"Previous response with id {previous!r} not found."
            raise ApiError(
                400, problem, param="previous_response_id", code="previous_response_not_found"
            )
        before = self._conversations.get(previous, []) if previous is not None else []
        return [*before, *(self._item(item, index) for index, item in enumerate(raw))]

    def _item(self, item: Any, index: int) -> Any:
        if not isinstance(item, dict) or item.get("type") != "item_reference":
            return item
        if item.get("id") not in self._items:
            raise bad_request(f"input[{index}]", f"there is no item with id {item.get('id')!r}")
        return self._items[item["id"]]


def read_responses_request(body: object, items: Sequence[Any]) -> ChatRequest:
    """Check the JSON of a request, and convert it.

    Args:
        body: the request's JSON.
        items: the items of the conversation, from :meth:`ResponseStore.items`.

    Raises:
        ApiError: a field is wrong or not supported; the error names the field.
    """
    given = fields_of(body)
    for name in ("input", "previous_response_id"):
        given.pop(name, None)
    overruled = {name: given.pop(name) for name in _OVERRULED if name in given}
    for name in _UNSUPPORTED:
        if given.pop(name, None):
            raise bad_request(name, "is not supported: leave it out", "unsupported_parameter")
    _refuse_formats(given.pop("text", {}))
    tools = tuple(_function(tool) for tool in listed_tools(given.pop("tools", [])))
    choice = given.pop("tool_choice", "auto")
    if choice not in ("auto", "none"):
        problem = f"({choice!r}) must be 'auto' or 'none': no call can be forced"
        raise bad_request("tool_choice", problem, "unsupported_parameter")
    instructions = given.pop("instructions", "")
    if not isinstance(instructions, str):
        raise bad_request("instructions", "must be a text")
    system = [message_of({"role": "system", "content": instructions})] if instructions else []
    parallel = typed(given, "parallel_tool_calls", bool, "true or false")
    request = ChatRequest(
        model=str(given.pop("model", "policy")),
        messages=(*system, *_messages(items)),
        tools=tools,
        calls=bool(tools) and choice == "auto",
        one_call=parallel is False,
        splits_reasoning=True,
        max_tokens=count_of(given, "max_output_tokens"),
        stream=typed(given, "stream", bool, "true or false") or False,
        overruled=overruled,
    )
    for name in sorted(given.keys() - {*_NO_EFFECT}):
        warn_once(f"an agent sends {name!r} to /v1/responses: the field is unknown, and ignored")
    return request


def _refuse_formats(text: object) -> None:
    """Reject formats that need constrained sampling."""
    chosen = text.get("format") if isinstance(text, dict) else None
    if chosen is not None and chosen != {"type": "text"}:
        raise bad_request("text.format", 'must be {"type": "text"}', "unsupported_parameter")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool of a request, with its place in the request."""

    where: str
    namespace: str
    """The namespace of the tool, or an empty text."""
    fields: Mapping[str, Any]

    @property
    def kind(self) -> object:
        """The tool's type. Types other than function and custom run at OpenAI's server."""
        return self.fields.get("type")

    @property
    def name(self) -> str:
        """The name that the model reads."""
        return ".".join(filter(None, [self.namespace, str(self.fields["name"])]))


def listed_tools(raw: object, where: str = "tools", namespace: str = "") -> Iterator[ListedTool]:
    """The functions and custom tools of a request, those of namespaces included."""
    if not isinstance(raw, list):
        raise bad_request(where, "must be a list")
    for index, tool in enumerate(raw):
        place = f"{where}[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in ("function", "custom", "namespace") and isinstance(tool.get("name"), str):
            if kind != "namespace":
                yield ListedTool(place, namespace, tool)
            else:
                yield from listed_tools(tool.get("tools"), f"{place}.tools", tool["name"])
        elif isinstance(kind, str) and kind not in ("function", "custom", "namespace"):
            warn_once(f"an agent sends a tool of type {kind!r}: the model does not see it")
        else:
            raise bad_request(place, 'must be {"type": "function", "name": ...}')


def _function(tool: ListedTool) -> dict[str, Any]:
    """A tool in the format of chat templates."""
    parameters = tool.fields.get("parameters") or {"type": "object", "properties": {}}
    if tool.kind == "custom":
        text = {"type": "string"}
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    description = str(tool.fields.get("description") or "")
    function = {"name": tool.name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _messages(items: Sequence[Any]) -> Iterator[Message]:
    """Messages of a conversation. An answer's text and the calls after it are one message."""
    if not items:
        raise bad_request("input", "must hold at least one item")
    text, calls = None, []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = _kind(item, where)
        if kind in _CALLS:
            calls.append(_call(item, where))
            continue
        if kind == "reasoning":
            # The recorded conversation has the sampled reasoning.
            continue
        if text is not None or calls:
            yield message_of(answer_fields(text or "", calls))
            text, calls = None, []
        if kind in _RESULTS:
            content, call_id = _text(item.get("output"), f"{where}.output"), item.get("call_id")
            fields = {"role": "tool", "content": content, "tool_call_id": str(call_id)}
            yield message_of(fields)
            continue
        content = _text(item.get("content"), f"{where}.content")
        if item["role"] == "assistant":
            text = content
        else:
            yield message_of({"role": ROLES[item["role"]], "content": content})
    if text is not None or calls:
        yield message_of(answer_fields(text or "", calls))


def _kind(item: object, where: str) -> str:
    """The type of an item that the policy can read."""
    if not isinstance(item, dict):
        raise bad_request(where, "must be an object")
    kind = str(item.get("type", "message"))
    if kind not in ("message", "reasoning", *_CALLS, *_RESULTS):
        raise bad_request(where, f"has the type {kind!r}, which is not supported: leave it out")
    if kind == "message" and item.get("role") not in ("user", "assistant", "system", "developer"):
        raise bad_request(f"{where}.role", "must be user, assistant, system or developer")
    return kind


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, key = item.get("name"), "input" if item["type"] == "custom_tool_call" else "arguments"
    given = item.get(key)
    if not isinstance(name, str) or not isinstance(given, str):
        raise bad_request(where, f"must have a name, and {key} as text")
    arguments = {INPUT: given} if key == "input" else given or "{}"
    name = ".".join(filter(None, [item.get("namespace"), name]))
    return call_field(str(item.get("call_id", "")), name, arguments)


def _text(raw: object, where: str) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise bad_request(where, "must be a text or a list of parts")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(raw))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            return text
    raise bad_request(where, f"has the type {kind!r}: the policy reads text alone")
