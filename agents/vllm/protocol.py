"""What is said to vLLM and what it answers: token ids in, token ids out, as plain JSON.

Two endpoints do it. ``/inference/v1/generate`` (a server with ``--enable-scale-out``) tells which
weights sampled which token. ``/v1/completions`` with ``return_token_ids`` does not: there a
completion's version is known only where no update fell into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agents.completion import Completion, FinishReason, SamplingParams

Endpoint = Literal["generate", "completions"]
"""Which of the two endpoints is asked."""
ENDPOINTS: dict[Endpoint, str] = {
    "generate": "/inference/v1/generate",
    "completions": "/v1/completions",
}
POISONED = -9999.0
"""What vLLM writes for a log-probability that is not a number: its weights or its cache are bad."""
ROUNDING = 1e-5
"""By how much a log-probability may come out above 0."""


class BadAnswer(Exception):
    """Raised when an answer does not hold what it should; it says what is missing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is read against."""

    prompt_length: int
    max_tokens: int
    context_window: int
    stop_token_ids: tuple[int, ...]
    version: int
    """The weights' version when the request was sent."""


def request_body(
    path: Endpoint,
    model: str,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    *,
    request_id: str,
    salt: str,
    prompt_logprobs: bool = False,
    priority: int = 0,
) -> dict[str, Any]:
    """The body of a request.

    Every parameter that a model's ``generation_config.json`` may set on the server is said, so that
    tokens come from the distribution that their log-probabilities are of.

    Args:
        path: which endpoint.
        model: its name on the server.
        prompt_ids: the prompt.
        sampling: how; only its own stop tokens end it, never those that the server adds.
        request_id: names the request where it is to be aborted.
        salt: of the prefix cache: keys and values of other weights are never found under it.
        prompt_logprobs: whether the prompt's log-probabilities are asked for as well.
        priority: lower is served earlier, where the server schedules by priority.
    """
    parameters: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 0,
    }
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if prompt_logprobs:
        parameters["prompt_logprobs"] = 0
    about: dict[str, Any] = {"model": model, "request_id": request_id, "cache_salt": salt}
    if priority:
        about["priority"] = priority
    if path == "generate":
        return {**about, "token_ids": list(prompt_ids), "sampling_params": parameters}
    return {**about, **parameters, "prompt": list(prompt_ids), "return_token_ids": True}


def completion_of(path: Endpoint, answer: Mapping[str, Any], asked: Asked) -> Completion:
    """The completion that an answer holds.

    Raises:
        BadAnswer: something is missing, or its numbers are none.
    """
    choice = _choice(answer)
    tokens = [int(token) for token in choice.get("token_ids") or ()]
    logprobs = _generate_logprobs(choice) if path == "generate" else _completions_logprobs(choice)
    if len(logprobs) != len(tokens):
        raise BadAnswer(f"{len(tokens)} tokens came with {len(logprobs)} log-probabilities")
    bad = [logprob for logprob in logprobs if not POISONED < logprob <= ROUNDING]
    if bad:
        raise BadAnswer(f"a sampled token has log-probability {bad[0]}: broken weights or cache")
    return Completion(
        tuple(tokens),
        tuple(min(logprob, 0.0) for logprob in logprobs),
        _versions(path, choice, len(tokens), asked),
        _finish_reason(choice, tokens, asked),
    )


def prompt_logprobs_of(answer: Mapping[str, Any], prompt_ids: Sequence[int]) -> list[float]:
    """The log-probability of each prompt token but the first, at temperature 1.

    Raises:
        BadAnswer: they are not all there.
    """
    rows = answer.get("prompt_logprobs")
    if rows is None:  # /v1/completions has them in its choice
        rows = _choice(answer).get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt_ids):
        raise BadAnswer("the prompt's log-probabilities are missing")
    found = []
    for token, row in zip(prompt_ids[1:], rows[1:], strict=True):
        entry = (row or {}).get(str(token))
        if entry is None:
            raise BadAnswer(f"the prompt's token {token} has no log-probability")
        found.append(float(entry["logprob"]))
    return found


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise BadAnswer("it has no choice, or several")
    choice: Mapping[str, Any] = choices[0]
    return choice


def _generate_logprobs(choice: Mapping[str, Any]) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content") or ()
    return [float(entry["logprob"]) for entry in content]


def _completions_logprobs(choice: Mapping[str, Any]) -> list[float]:
    return [
        float(logprob) for logprob in (choice.get("logprobs") or {}).get("token_logprobs") or ()
    ]


def _versions(
    path: Endpoint, choice: Mapping[str, Any], count: int, asked: Asked
) -> tuple[int, ...]:
    """The version of each token: half-open spans over the sampled tokens, or what was asked."""
    if path == "completions":
        return (asked.version,) * count
    versions: list[int] = []
    for span in choice.get("weight_versions") or ():
        if span["start"] != len(versions) or not str(span["version"]).isdigit():
            raise BadAnswer(f"its weight versions are {choice['weight_versions']}")
        versions += [int(span["version"])] * (span["end"] - span["start"])
    if len(versions) != count:
        raise BadAnswer(f"{count} tokens came with the weight versions of {len(versions)}")
    return tuple(versions)


def _finish_reason(choice: Mapping[str, Any], tokens: Sequence[int], asked: Asked) -> FinishReason:
    reason, stopped_by = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "stop":
        if isinstance(stopped_by, str):
            return FinishReason.STOP_STRING
        if tokens and tokens[-1] in asked.stop_token_ids:
            return FinishReason.STOP_TOKEN
        raise BadAnswer(f"it stopped by {stopped_by}, which nobody asked for")
    if reason == "length":
        full = asked.prompt_length + len(tokens) >= asked.context_window
        return (
            FinishReason.CONTEXT_FULL
            if full and len(tokens) < asked.max_tokens
            else (FinishReason.LENGTH)
        )
    raise BadAnswer(f"its finish_reason is {reason!r}")
