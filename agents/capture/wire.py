"""Answers in the format of chat completions: one object, or a stream of chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from agents.capture.episode import Answer
from agents.capture.record import CapturedCall
from agents.capture.request import ChatRequest

DONE = b"data: [DONE]\n\n"


def completion_body(request: ChatRequest, answers: Sequence[Answer]) -> dict[str, Any]:
    """A response of type ``chat.completion``."""
    choices = [
        {
            "index": index,
            "message": _message(answer),
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        for index, answer in enumerate(answers)
    ]
    return {**_head(request, answers, ""), "choices": choices, "usage": _usage(answers)}


def chunks(request: ChatRequest, answers: Sequence[Answer]) -> Iterator[bytes]:
    """The response as server-sent events.

    A policy returns complete answers, so one chunk has the whole text.
    """
    head = _head(request, answers, ".chunk")
    # With include_usage all chunks have the field, and only the last one has a value.
    usage = {"usage": None} if request.include_usage else {}
    for place, answer in enumerate(answers):
        for delta, reason in _deltas(answer):
            choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": reason}
            yield _event({**head, "choices": [choice], **usage})
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answers)})
    yield DONE


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": ""}, None
    if answer.content:
        yield {"content": answer.content}, None
    for index, call in enumerate(answer.calls):
        yield {"tool_calls": [{"index": index, **_call(call)}]}, None
    yield {}, answer.finish_reason


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(answer), "refusal": None}
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    return message


def _head(request: ChatRequest, answers: Sequence[Answer], suffix: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answers[0].turn}",
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


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    # As with OpenAI, a prompt counts once, however many answers it has.
    prompt = answers[0].num_prompt_tokens
    sampled = sum(len(answer.completion.token_ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
