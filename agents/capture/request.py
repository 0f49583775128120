"""The request that every API becomes, and the reader of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.capture.errors import ApiError, bad_request
from agents.capture.messages import Message, read_message

_NO_EFFECT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    "prompt_cache_retention",
)
"""Fields that have no effect on an answer."""
_OVERRULED = ("temperature", "top_p", "top_k", "seed")
"""Fields that the run overrides, because training needs tokens sampled with the run's settings."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
}
"""Fields that are accepted only with their default values. The values here are the defaults."""
_MAX_STOPS = 16
_MAX_ANSWERS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked request of any API: chat completions, Anthropic's messages, OpenAI's responses."""

    model: str
    """Name that the agent uses for the model. The answer has the same name."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    calls: bool = False
    """Whether calls in the answer are returned as tool calls."""
    one_call: bool = False
    """Whether the agent gets only the first call of an answer."""
    splits_reasoning: bool = False
    """Whether the agent gets the reasoning (``<think>``) apart from the answer."""
    n: int = 1
    """Number of answers."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with token counts."""
    overruled: Mapping[str, Any] | None = None
    """Sampling settings of the agent, which the run overrides."""


def read_request(body: object) -> ChatRequest:
    """Check the JSON of a request, and convert it.

    Raises:
        ApiError: a field is missing, wrong, or not supported; the error names the field.
    """
    given = fields_of(body)
    for name in _NO_EFFECT:
        given.pop(name, None)
    overruled = {name: given.pop(name) for name in _OVERRULED if name in given}
    raw = given.pop("messages", None)
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages", "must be a list of at least one message")
    tools = _tools(given.pop("tools", []))
    options = given.pop("stream_options", {})
    stream = typed(given, "stream", bool, "true or false") or False
    parallel = typed(given, "parallel_tool_calls", bool, "true or false")
    n = count_of(given, "n") or 1
    if n > _MAX_ANSWERS:
        raise bad_request("n", f"({n}) must be at most {_MAX_ANSWERS}")
    limits = [count_of(given, name) for name in ("max_tokens", "max_completion_tokens")]
    model, stop = str(given.pop("model", "policy")), stop_texts("stop", given.pop("stop", ()))
    choice = given.get("tool_choice", "auto")
    _refuse(given)
    return ChatRequest(
        model=model,
        messages=tuple(read_message(message, index) for index, message in enumerate(raw)),
        tools=tools,
        calls=bool(tools) and choice != "none",
        one_call=parallel is False,
        n=n,
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stop=stop,
        stream=stream,
        include_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        overruled=overruled,
    )


def _refuse(left: Mapping[str, Any]) -> None:
    """Reject the remaining fields of a request, unless they have their default values."""
    for name, value in left.items():
        taken = _NEUTRAL.get(name, ())
        # In Python True equals 1, but n=true is not a number.
        if not any(value == one and type(value) in (type(one), float) for one in taken):
            only = f" other than {' or '.join(map(repr, taken))}" if taken else ""
            raise bad_request(
                name, f"is not supported{only}: leave it out", "unsupported_parameter"
            )


def fields_of(body: object) -> dict[str, Any]:
    """The fields of a request's body that are not null."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return {name: value for name, value in body.items() if value is not None}


def typed(given: dict[str, Any], name: str, kind: type, expected: str) -> Any:
    """Remove a field and return its value, or None if it is missing.

    Raises:
        ApiError: the value is not of this type.
    """
    value = given.pop(name, None)
    if value is not None and type(value) is not kind:
        raise bad_request(name, f"({value!r}) must be {expected}")
    return value


def count_of(given: dict[str, Any], name: str) -> int | None:
    """Remove a field with a number of at least 1 and return its value, or None if it is missing."""
    value: int | None = typed(given, name, int, "a whole number")
    if value is not None and value < 1:
        raise bad_request(name, f"({value}) must be at least 1")
    return value


def stop_texts(name: str, raw: object) -> tuple[str, ...]:
    """The stop strings of the field ``name``."""
    stops = [raw] if isinstance(raw, str) else raw
    if not isinstance(stops, list | tuple) or not all(isinstance(s, str) and s for s in stops):
        raise bad_request(name, "must be a text that is not empty, or a list of such texts")
    if len(stops) > _MAX_STOPS:
        raise bad_request(name, f"must hold at most {_MAX_STOPS} texts")
    return tuple(stops)


def _tools(raw: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(raw, list):
        raise bad_request("tools", "must be a list")
    for index, tool in enumerate(raw):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_request(
                f"tools[{index}]", 'must be {"type": "function", "function": {"name": ...}}'
            )
    return tuple(raw)
