"""Answers in the format of OpenAI's Responses API: one object, or a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agents.capture.episode import Answer
from agents.capture.errors import ApiError
from agents.capture.record import CapturedCall
from agents.capture.request import ChatRequest
from agents.capture.responses_request import INPUT, ListedTool, listed_tools

_ECHOED: Mapping[str, Any] = {
    **{"instructions": None, "metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto"},
    **{"tools": [], "temperature": None, "top_p": None, "max_output_tokens": None, "store": True},
    **{"previous_response_id": None, "reasoning": None, "truncation": "disabled", "user": None},
}
"""Fields of a request that its response repeats, and their values if the request lacks them."""
_Body = Mapping[str, Any]


def response_body(body: _Body, request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A response of type ``response``, for a request with the JSON ``body``."""
    cut = answer.finish_reason == "length"
    return {
        **_head(body, request, f"resp_{answer.turn:05d}"),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [*_items(body, answer)],
        "usage": _usage(answer),
    }


def response_events(response: dict[str, Any]) -> Iterator[bytes]:
    """A response as server-sent events. Each text is one delta."""
    started = {**response, "status": "in_progress", "output": [], "usage": None}
    started["incomplete_details"] = None
    events = [{"type": "response.created", "response": started}]
    events.append({"type": "response.in_progress", "response": started})
    for index, item in enumerate(response["output"]):
        events += _item_events(item, index)
    events.append({"type": f"response.{response['status']}", "response": response})
    return _numbered(events)


def failed_events(body: _Body, request: ChatRequest, error: ApiError) -> Iterator[bytes]:
    """A stream that ends with an error. Codex recognizes a full context in no other way."""
    head = {**_head(body, request, "resp_failed"), "output": [], "usage": None}
    head["incomplete_details"] = None
    problem = {"code": error.code, "message": error.message}
    failed = {**head, "status": "failed", "error": problem}
    started = {**head, "status": "in_progress"}
    return _numbered(
        [
            {"type": "response.created", "response": started},
            {"type": "response.failed", "response": failed},
        ]
    )


def _head(body: _Body, request: ChatRequest, response_id: str) -> dict[str, Any]:
    echoed = {
        name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()
    }
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "error": None,
        "text": {"format": {"type": "text"}},
        **echoed,
    }


def _items(body: _Body, answer: Answer) -> Iterator[dict[str, Any]]:
    """The answer as items: reasoning, the text, calls."""
    if answer.reasoning:
        # Programs that keep no state at the server send the encrypted reasoning back.
        encrypted = "reasoning.encrypted_content" in (body.get("include") or ())
        yield {
            "id": f"rs_{answer.turn:05d}",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": answer.reasoning}],
            "encrypted_content": f"turn{answer.turn:05d}" if encrypted else None,
        }
    if answer.content or not answer.calls:
        status = "incomplete" if answer.finish_reason == "length" else "completed"
        part = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
        yield {
            "id": f"msg_{answer.turn:05d}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part],
        }
    tools = {tool.name: tool for tool in listed_tools(body.get("tools") or [])}
    for call in answer.calls:
        yield _call(call, tools.get(call.name))


def _call(call: CapturedCall, tool: ListedTool | None) -> dict[str, Any]:
    """A call as an item. ``tool`` is None if the request has no tool of the call's name."""
    named = {"call_id": call.id, "name": call.name, "status": "completed"}
    if tool is not None and tool.namespace:
        named |= {"name": str(tool.fields["name"]), "namespace": tool.namespace}
    text = call.arguments.get(INPUT)
    custom = tool is not None and tool.kind == "custom"
    if custom and isinstance(text, str) and len(call.arguments) == 1:
        return {"id": f"ctc_{call.id}", "type": "custom_tool_call", "input": text, **named}
    written = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": f"fc_{call.id}", "type": "function_call", "arguments": written, **named}


def _item_events(item: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    """The events that build an item."""
    at = {"item_id": item["id"], "output_index": index}
    if item["type"] in ("message", "reasoning"):
        empty, inner = {**item, "content": []}, _part_events(item["content"][0], at)
    else:
        key = "input" if item["type"] == "custom_tool_call" else "arguments"
        stem = "custom_tool_call_input" if key == "input" else "function_call_arguments"
        empty = {**item, key: ""}
        inner = [
            {"type": f"response.{stem}.delta", **at, "delta": item[key]},
            {"type": f"response.{stem}.done", **at, key: item[key], "name": item["name"]},
        ]
    started = empty if item["type"] == "reasoning" else {**empty, "status": "in_progress"}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": started},
        *inner,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _part_events(part: Mapping[str, Any], at: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events that build the only part of a message or of reasoning."""
    at = {**at, "content_index": 0}
    text, empty = part["text"], {**part, "text": ""}
    logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    return [
        {"type": "response.content_part.added", **at, "part": empty},
        {"type": f"response.{part['type']}.delta", **at, "delta": text, **logprobs},
        {"type": f"response.{part['type']}.done", **at, "text": text, **logprobs},
        {"type": "response.content_part.done", **at, "part": part},
    ]


def _usage(answer: Answer) -> dict[str, Any]:
    read, sampled = answer.num_prompt_tokens, len(answer.completion.token_ids)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + sampled,
    }


def _numbered(events: list[dict[str, Any]]) -> Iterator[bytes]:
    for number, event in enumerate(events):
        data = json.dumps({**event, "sequence_number": number})
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()
