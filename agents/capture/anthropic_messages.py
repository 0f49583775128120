"""Anthropic's Messages API: reads requests, and writes answers, streams and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from agents.capture.episode import Answer
from agents.capture.errors import ApiError, bad_request, warn_once
from agents.capture.messages import Message, answer_fields, call_field, message_of
from agents.capture.request import ChatRequest, count_of, fields_of, stop_texts, typed
from agents.completion import FinishReason

_NO_EFFECT = (
    *("betas", "cache_control", "context_management", "inference_geo", "metadata"),
    *("service_tier", "speed", "thinking"),
)
"""Fields that have no effect on an answer here."""
_OVERRULED = ("temperature", "top_p", "top_k")
"""Fields that the run overrides, because training needs tokens sampled with the run's settings."""
_UNSUPPORTED = ("container", "mcp_servers", "output_format")
"""Fields that would change the answer, and that no policy can follow."""
_REASONING = ("thinking", "redacted_thinking")
"""Blocks that are left out: the recorded conversation has the sampled reasoning."""
_NOT_READ = "x-anthropic-billing-header:"
"""Start of a system block that Claude Code writes for Anthropic's server. No model reads it, and it
differs from request to request."""
_ERROR_TYPES: Mapping[int, str] = {
    **{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"},
    **{404: "not_found_error", 409: "invalid_request_error", 413: "request_too_large"},
}
"""Error types by status; every other status is an ``api_error``."""


def read_messages_request(body: object, *, counting: bool = False) -> ChatRequest:
    """Check the JSON of a request, and convert it.

    Args:
        body: the request's JSON.
        counting: whether the request asks for a token count, and needs no ``max_tokens``.

    Raises:
        ApiError: a field is missing, wrong, or not supported; the error names the field.
    """
    given = fields_of(body)
    overruled = {name: given.pop(name) for name in _OVERRULED if name in given}
    max_tokens = count_of(given, "max_tokens")
    if max_tokens is None and not counting:
        raise bad_request("max_tokens", "is required")
    _refuse_formats(given)
    tools, choice = _tools(given.pop("tools", [])), _choice(given.pop("tool_choice", {}))
    request = ChatRequest(
        model=str(given.pop("model", "policy")),
        messages=(*_system(given.pop("system", "")), *_messages(given.pop("messages", None))),
        tools=tools,
        calls=bool(tools) and choice.get("type") != "none",
        one_call=bool(choice.get("disable_parallel_tool_use")),
        splits_reasoning=True,
        max_tokens=max_tokens,
        stop=stop_texts("stop_sequences", given.pop("stop_sequences", [])),
        stream=typed(given, "stream", bool, "true or false") or False,
        overruled=overruled,
    )
    for name in sorted(given.keys() - {*_NO_EFFECT}):
        warn_once(f"an agent sends {name!r} to /v1/messages: the field is unknown, and ignored")
    return request


def message_body(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A response of type ``message``."""
    return {
        **_head(request, answer),
        "content": [*_blocks(answer)],
        "stop_reason": _stop_reason(answer),
        "stop_sequence": answer.stop,
        "usage": _usage(answer, len(answer.completion.token_ids)),
    }


def message_events(request: ChatRequest, answer: Answer) -> Iterator[bytes]:
    """The response as server-sent events. Each block's content is one delta."""
    message = {**_head(request, answer), "content": [], "usage": _usage(answer, 0)}
    message |= {"stop_reason": None, "stop_sequence": None}
    yield _event({"type": "message_start", "message": message})
    for index, block in enumerate(_blocks(answer)):
        empty, deltas = _in_parts(block)
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stopped = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.stop}
    usage = _usage(answer, len(answer.completion.token_ids))
    yield _event({"type": "message_delta", "delta": stopped, "usage": usage})
    yield _event({"type": "message_stop"})


def error_body(error: ApiError) -> Mapping[str, Any]:
    """The response's body for an error."""
    message = error.message
    if error.code == "context_length_exceeded":
        # Claude Code recognizes a full context by these words.
        message = f"prompt is too long: {message}"
    kind = _ERROR_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _refuse_formats(given: dict[str, Any]) -> None:
    """Reject what would need constrained sampling or a vendor's server."""
    output = given.pop("output_config", {})
    if isinstance(output, dict) and output.get("format") is not None:
        raise bad_request("output_config.format", "is not supported: leave it out")
    for name in _UNSUPPORTED:
        if given.pop(name, None):
            raise bad_request(name, "is not supported: leave it out")


def _choice(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or raw.get("type", "auto") not in ("auto", "none"):
        raise bad_request(
            "tool_choice", f'({raw!r}) must be of type "auto" or "none": no call can be forced'
        )
    return raw


def _tools(raw: object) -> tuple[Mapping[str, Any], ...]:
    """Tools in the format of chat templates. Tools that Anthropic defines are left out."""
    if not isinstance(raw, list):
        raise bad_request("tools", "must be a list")
    tools = []
    for index, tool in enumerate(raw):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise bad_request(f"tools.{index}", 'must be {"name", "description", "input_schema"}')
        if not isinstance(tool.get("input_schema"), dict):
            warn_once(
                f"an agent sends the tool {tool['name']!r} of type {tool.get('type')!r}, without "
                "an input_schema: the model does not see it"
            )
            continue
        function = {
            "name": tool["name"],
            "description": str(tool.get("description") or ""),
            "parameters": tool["input_schema"],
        }
        tools.append({"type": "function", "function": function})
    return tuple(tools)


def _system(raw: object) -> list[Message]:
    """The system prompt, a text or a list of blocks, as at most one message."""
    texts = [
        text for text in _texts(raw, "system") if text.strip() and not text.startswith(_NOT_READ)
    ]
    return [message_of({"role": "system", "content": "\n".join(texts)})] if texts else []


def _messages(raw: object) -> Iterator[Message]:
    """Messages, in which several of one role after each other are one, as on Anthropic's server."""
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages", "must be a list of at least one message")
    blocks = [_placed(message, f"messages.{index}") for index, message in enumerate(raw)]
    if blocks[-1][0] == "assistant":
        raise bad_request(
            f"messages.{len(raw) - 1}",
            "is the assistant's: the policy continues no message, so the last one must be a user's",
        )
    for role, group in groupby(blocks, key=lambda each: each[0]):
        placed = [each for _, found in group for each in found]
        if role == "assistant":
            yield _assistant(placed)
        else:
            yield from _user(placed, role)


_Placed = tuple[str, Mapping[str, Any]]
"""A block and its place in the request, for errors."""


def _placed(message: object, where: str) -> tuple[str, list[_Placed]]:
    """The role and the blocks of a message."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise bad_request(where, 'must be {"role": "user" or "assistant", "content": ...}')
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise bad_request(f"{where}.content", "must be a text or a list of blocks")
    placed = [(f"{where}.content.{i}", block) for i, block in enumerate(content)]
    for place, block in placed:
        if not isinstance(block, dict):
            raise bad_request(place, "must be an object with a type")
    return str(message["role"]), placed


def _assistant(placed: Sequence[_Placed]) -> Message:
    texts, calls = [], []
    for where, block in placed:
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, where))
        elif kind == "tool_use":
            name, given = block.get("name"), block.get("input", {})
            if not isinstance(name, str) or not isinstance(given, dict):
                raise bad_request(where, "must have a name and an input, which is an object")
            calls.append(call_field(str(block.get("id", "")), name, given))
        elif kind not in _REASONING:
            raise _unread(where, kind)
    return message_of(answer_fields("".join(texts), calls))


def _user(placed: Sequence[_Placed], role: str) -> Iterator[Message]:
    """Each tool result as one message, and the texts between results as one."""
    for is_result, group in groupby(placed, key=lambda each: each[1].get("type") == "tool_result"):
        if not is_result:
            texts = [_text(block, where) for where, block in group]
            yield message_of({"role": role, "content": "\n".join(texts)})
            continue
        for where, block in group:
            content = "\n".join(_texts(block.get("content") or "", f"{where}.content"))
            call_id = str(block.get("tool_use_id", ""))
            yield message_of({"role": "tool", "content": content, "tool_call_id": call_id})


def _texts(raw: object, where: str) -> list[str]:
    """A text, or the texts of a list of blocks."""
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not all(isinstance(block, dict) for block in raw):
        raise bad_request(where, "must be a text or a list of blocks")
    return [_text(block, f"{where}.{index}") for index, block in enumerate(raw)]


def _text(block: Mapping[str, Any], where: str) -> str:
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    raise _unread(where, block.get("type"))


def _unread(where: str, kind: object) -> ApiError:
    return bad_request(where, f"has the type {kind!r}: the policy reads text alone")


def _head(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.turn:05d}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
    }


def _blocks(answer: Answer) -> Iterator[dict[str, Any]]:
    """The answer's content."""
    if answer.reasoning:
        signature = f"turn{answer.turn:05d}"
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": signature}
    if answer.content:
        yield {"type": "text", "text": answer.content}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _in_parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block without its content, and the deltas that add the content."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {**block, "thinking": "", "signature": ""}, deltas
    written = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _stop_reason(answer: Answer) -> str:
    if answer.calls:
        return "tool_use"
    if answer.stop is not None:
        return "stop_sequence"
    reasons = {
        FinishReason.LENGTH: "max_tokens",
        FinishReason.CONTEXT_FULL: "model_context_window_exceeded",
    }
    return reasons.get(answer.completion.finish_reason, "end_turn")


def _usage(answer: Answer, num_sampled: int) -> dict[str, Any]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": answer.num_prompt_tokens, "output_tokens": num_sampled, **cached}


def _event(data: Mapping[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
