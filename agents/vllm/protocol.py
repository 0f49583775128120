"""Requests and responses of a vLLM server: token ids in and out, as plain JSON.

There are two endpoints. ``/inference/v1/generate`` (a server with ``--enable-scale-out``) reports
the weight version of each token. ``/v1/completions`` with ``return_token_ids`` does not, so a
completion's version is known only if no update happened while it ran.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agents.completion import Completion
from agents.vllm.sampling import (
    BadAnswer,
    Expected,
    Sampled,
    Span,
    completion_from,
    scored,
)

Endpoint = Literal["generate", "completions"]
"""One of the two endpoints."""
ENDPOINTS: dict[Endpoint, str] = {
    "generate": "/inference/v1/generate",
    "completions": "/v1/completions",
}


Verb = Literal[
    "init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"
]
"""vLLM's names for the steps of its own weight transfer."""


def request_body(
    endpoint: Endpoint,
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
        endpoint: the endpoint.
        model: the model's name on the server.
        prompt_ids: the prompt.
        parameters: result of :func:`~agents.vllm.sampling.sampling_parameters`.
        request_id: the request's name, for aborting it.
        salt: part of the prefix cache's key, so that entries of other weights are never used.
        priority: requests with lower values are served earlier if the server schedules by priority.
    """
    about: dict[str, Any] = {"model": model, "request_id": request_id, "cache_salt": salt}
    if priority:
        about["priority"] = priority
    if endpoint == "generate":
        return {**about, "token_ids": list(prompt_ids), "sampling_params": dict(parameters)}
    return {**about, **parameters, "prompt": list(prompt_ids), "return_token_ids": True}


def transfer_body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a transfer's verb as JSON values. Handles of CUDA memory are pickled.

    A server unpickles them only with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``.
    """
    update = arguments.get("update_info")
    if not isinstance(update, Mapping) or update.get("ipc_handles") is None:
        return dict(arguments)
    pickled = base64.b64encode(pickle.dumps(update["ipc_handles"])).decode()
    rest = {key: value for key, value in update.items() if key != "ipc_handles"}
    return {**arguments, "update_info": {**rest, "ipc_handles_pickled": pickled}}


def completion_of(endpoint: Endpoint, answer: Mapping[str, Any], expected: Expected) -> Completion:
    """The checked completion of a response.

    Raises:
        BadAnswer: a part of the response is missing or invalid.
        NotReported: the sampling support or the experts are missing.
    """
    with _readable():
        sampled = _sampled(endpoint, answer, with_support=expected.needs_support)
    return completion_from(sampled, expected)


def _sampled(endpoint: Endpoint, answer: Mapping[str, Any], *, with_support: bool) -> Sampled:
    choice = _choice(answer)
    scores = choice.get("logprobs") or {}
    if endpoint == "generate":
        logprobs = [float(entry["logprob"]) for entry in scores.get("content") or ()]
        spans = [
            Span(str(span["version"]), int(span["start"]), int(span["end"]))
            for span in choice.get("weight_versions") or ()
        ]
    else:
        logprobs = [float(logprob) for logprob in scores.get("token_logprobs") or ()]
        spans = None
    tokens = list(map(int, choice.get("token_ids") or ()))
    reason, stopped_by = choice.get("finish_reason"), choice.get("stop_reason")
    mask = choice.get("sampling_mask") if with_support else None
    supports = None if mask is None else [list(map(int, support)) for support in mask]
    return Sampled(tokens, logprobs, spans, reason, stopped_by, supports, _experts(choice))


def _experts(choice: Mapping[str, Any]) -> NDArray[np.integer[Any]] | None:
    """The experts of each token: the bytes of NumPy's file, in base 64."""
    encoded = choice.get("routed_experts")
    if encoded is None:
        return None
    file = BytesIO(base64.b64decode(encoded))
    found: NDArray[np.integer[Any]] = np.load(file, allow_pickle=False)
    return found


def prompt_logprobs_of(answer: Mapping[str, Any], prompt_ids: Sequence[int]) -> list[float]:
    """The log-probability of each prompt token except the first, at temperature 1.

    Raises:
        BadAnswer: a value is missing.
    """
    with _readable():
        rows = answer.get("prompt_logprobs")
        if rows is None:  # /v1/completions puts them into the choice
            rows = _choice(answer).get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(prompt_ids):
            return scored(prompt_ids, None)
        entries = [(row or {}).get(str(token)) for token, row in zip(prompt_ids, rows, strict=True)]
        return scored(prompt_ids, [float(e["logprob"]) if e else None for e in entries])


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turn errors from an unexpected shape of the response into BadAnswer."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadAnswer(f"its shape is unexpected: {type(error).__name__}: {error}") from error


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise BadAnswer("it must have exactly one choice")
    choice: Mapping[str, Any] = choices[0]
    return choice
