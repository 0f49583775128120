"""Responses in the format of OpenAI's API: one object, or a stream of chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from agents.capture.episode import Answer
from agents.capture.record import CapturedCall
from agents.capture.request import ChatRequest

DONE = b"data: [DONE]\n\n"


def completion_body(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A response of type ``chat.completion``."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(answer), "refusal": None}
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
    }
    return {**_head(request, answer, ""), "choices": [choice], "usage": _usage(answer)}


def chunks(request: ChatRequest, answer: Answer) -> Iterator[bytes]:
    """The response as server-sent events.

    A policy returns complete answers, so one chunk has the whole text.
    """
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    if answer.content:
        deltas.append(({"content": answer.content}, None))
    for index, call in enumerate(answer.calls):
        deltas.append(({"tool_calls": [{"index": index, **_call(call)}]}, None))
    deltas.append(({}, answer.finish_reason))
    head = _head(request, answer, ".chunk")
    # With include_usage all chunks have the field, and only the last one has a value.
    usage = {"usage": None} if request.include_usage else {}
    for delta, reason in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield _event({**head, "choices": [choice], **usage})
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield DONE


def _head(request: ChatRequest, answer: Answer, suffix: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.turn}",
        "object": f"chat.completion{suffix}",
        "created": int(time.time()),
        "model": request.model,
    }


def _content(answer: Answer) -> str | None:
    return None if answer.calls and not answer.content else answer.content


def _call(call: CapturedCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, sampled = answer.num_prompt_tokens, len(answer.completion.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
