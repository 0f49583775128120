"""What is said to a vLLM server and what it answers: token ids in and out, as plain JSON.

Two endpoints do it. ``/inference/v1/generate`` (a server with ``--enable-scale-out``) tells which
weights sampled which token. ``/v1/completions`` with ``return_token_ids`` does not: there a
completion's version is known only where no update fell into it.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from agents.completion import Completion
from agents.vllm.sampling import (
    Asked,
    BadAnswer,
    Sampled,
    Span,
    completion_from,
    scored,
)

Endpoint = Literal["generate", "completions"]
"""Which of the two endpoints is asked."""
ENDPOINTS: dict[Endpoint, str] = {
    "generate": "/inference/v1/generate",
    "completions": "/v1/completions",
}


Verb = Literal[
    "init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"
]
"""What a vLLM is told of a transfer of weights, as it calls it."""


def request_body(
    path: Endpoint,
    model: str,
    prompt_ids: Sequence[int],
    parameters: Mapping[str, Any],
    *,
    request_id: str,
    salt: str,
    priority: int = 0,
) -> dict[str, Any]:
    """The body of a request.

    Args:
        path: which endpoint.
        model: its name on the server.
        prompt_ids: the prompt.
        parameters: how it samples (:func:`~agents.vllm.sampling.sampling_parameters`).
        request_id: names the request where it is to be aborted.
        salt: of the prefix cache: keys and values of other weights are never found under it.
        priority: lower is served earlier, where the server schedules by priority.
    """
    about: dict[str, Any] = {"model": model, "request_id": request_id, "cache_salt": salt}
    if priority:
        about["priority"] = priority
    if path == "generate":
        return {**about, "token_ids": list(prompt_ids), "sampling_params": dict(parameters)}
    return {**about, **parameters, "prompt": list(prompt_ids), "return_token_ids": True}


def transfer_body(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a verb tells, for a server's HTTP: handles of CUDA's memory are pickled.

    A server unpickles them only with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``.
    """
    update = told.get("update_info")
    if not isinstance(update, Mapping) or update.get("ipc_handles") is None:
        return dict(told)
    pickled = base64.b64encode(pickle.dumps(update["ipc_handles"])).decode()
    rest = {key: value for key, value in update.items() if key != "ipc_handles"}
    return {**told, "update_info": {**rest, "ipc_handles_pickled": pickled}}


def completion_of(path: Endpoint, answer: Mapping[str, Any], asked: Asked) -> Completion:
    """The completion that an answer holds.

    Raises:
        BadAnswer: something is missing, or its numbers are none.
        NoSupport: it must tell which tokens could be sampled.
    """
    with _readable():
        sampled = _sampled(path, answer)
    return completion_from(sampled, asked)


def _sampled(path: Endpoint, answer: Mapping[str, Any]) -> Sampled:
    choice = _choice(answer)
    told = choice.get("logprobs") or {}
    if path == "generate":
        logprobs = [float(entry["logprob"]) for entry in told.get("content") or ()]
        spans = [
            Span(str(span["version"]), int(span["start"]), int(span["end"]))
            for span in choice.get("weight_versions") or ()
        ]
    else:
        logprobs = [float(logprob) for logprob in told.get("token_logprobs") or ()]
        spans = None
    tokens = list(map(int, choice.get("token_ids") or ()))
    reason, stopped_by = choice.get("finish_reason"), choice.get("stop_reason")
    mask = choice.get("sampling_mask")
    supports = None if mask is None else [list(map(int, support)) for support in mask]
    return Sampled(tokens, logprobs, spans, reason, stopped_by, supports)


def prompt_logprobs_of(answer: Mapping[str, Any], prompt_ids: Sequence[int]) -> list[float]:
    """The log-probability of each prompt token but the first, at temperature 1.

    Raises:
        BadAnswer: they are not all there.
    """
    with _readable():
        rows = answer.get("prompt_logprobs")
        if rows is None:  # /v1/completions has them in its choice
            rows = _choice(answer).get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(prompt_ids):
            return scored(prompt_ids, None)
        entries = [(row or {}).get(str(token)) for token, row in zip(prompt_ids, rows, strict=True)]
        return scored(prompt_ids, [float(e["logprob"]) if e else None for e in entries])


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """An answer of another shape is a bad one, wherever that shows."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadAnswer(f"its shape is another: {type(error).__name__}: {error}") from error


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise BadAnswer("it has no choice, or several")
    choice: Mapping[str, Any] = choices[0]
    return choice
