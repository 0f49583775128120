"""Sampling parameters for vLLM and checks of its completions, for servers and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.completion import Completion, FinishReason, SamplingParams

POISONED = -9999.0
"""Log-probability that vLLM reports instead of NaN. vLLM's weights or cache are then broken."""
UNBOUNDED = (
    "reports the support of every token, without top_k the whole vocabulary: set sampling.top_k "
    "and eval.top_k, or start it without --return-sampling-mask"
)
ROUNDING = 1e-5
"""Largest log-probability that is accepted. Rounding can make a log-probability of 0 positive."""


class BadAnswer(Exception):
    """Raised when a response is incomplete or contains invalid values."""


class NotReported(Exception):
    """Raised when a response lacks something that training needs."""


class NoSupport(NotReported):
    """Raised when a response lacks the sampling support."""

    def __init__(self) -> None:
        super().__init__(
            "the response does not report the tokens that top_p and top_k left, which importance "
            "ratios need: start it with --return-sampling-mask (vLLM has it on GPUs only), or "
            "sample with top_p=1 and top_k=0"
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """Properties of a request that a response must match."""

    prompt_length: int
    max_tokens: int
    context_window: int
    stop_token_ids: tuple[int, ...]
    version: int
    """Version of the weights when the request was sent."""
    needs_support: bool = False
    """Whether the response must report the sampling support."""
    needs_experts: bool = False
    """Whether the response must report the experts of each token."""

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], sampling: SamplingParams, window: int, version: int
    ) -> Expected:
        """The properties of one request."""
        return cls(
            prompt_length=len(prompt_ids),
            max_tokens=sampling.max_tokens,
            context_window=window,
            stop_token_ids=sampling.stop_token_ids,
            version=version,
            needs_support=sampling.needs_support,
            needs_experts=sampling.with_experts,
        )


class Span(NamedTuple):
    """The version of the tokens from ``start`` up to, but not including, ``end``."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion as vLLM reports it, before any check."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span] | None
    """Versions of the tokens. None if vLLM reports no versions; all tokens then have the request's
    version."""
    finish_reason: str | None
    stopped_by: int | str | None
    supports: Sequence[Sequence[int]] | None = None
    """Support of each token: the ids from which it was sampled. None if vLLM did not report it."""
    experts: NDArray[np.integer[Any]] | None = None
    """``[n, layers, k]``, the experts of each token of prompt and completion. None if vLLM did not
    report them."""


def sampling_parameters(
    sampling: SamplingParams, *, prompt_logprobs: bool = False
) -> dict[str, Any]:
    """Sampling parameters, by vLLM's names.

    Every parameter that a model's ``generation_config.json`` could set is included, so that
    log-probabilities belong to the distribution from which tokens are sampled.

    Args:
        sampling: the parameters. Only the stop tokens in ``sampling`` end a completion, and never
            vLLM's default ones.
        prompt_logprobs: whether the prompt's log-probabilities are requested as well.
    """
    parameters: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
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
    return parameters


def completion_from(sampled: Sampled, expected: Expected) -> Completion:
    """The checked completion.

    Raises:
        BadAnswer: a part of the response is missing or invalid.
        NotReported: the sampling support or the experts are missing.
    """
    tokens, logprobs = sampled.token_ids, sampled.logprobs
    if len(logprobs) != len(tokens):
        raise BadAnswer(f"{len(tokens)} tokens came with {len(logprobs)} log-probabilities")
    bad = [logprob for logprob in logprobs if not POISONED < logprob <= ROUNDING]
    if bad:
        raise BadAnswer(f"a sampled token has log-probability {bad[0]}: broken weights or cache")
    return Completion(
        tuple(tokens),
        tuple([logprob if logprob < 0 else 0.0 for logprob in logprobs]),
        _versions(sampled, expected),
        _finish_reason(sampled, expected),
        _supports(sampled) if expected.needs_support else None,
        _experts(sampled, expected) if expected.needs_experts else None,
    )


def scored(prompt_ids: Sequence[int], logprobs: Sequence[float | None] | None) -> list[float]:
    """The log-probability of each prompt token except the first.

    Args:
        prompt_ids: the prompt.
        logprobs: vLLM's value for each token, or None for a token without one.

    Raises:
        BadAnswer: a value is missing.
    """
    if logprobs is None or len(logprobs) != len(prompt_ids):
        raise BadAnswer("the prompt's log-probabilities are missing")
    found = []
    for token, logprob in zip(prompt_ids[1:], logprobs[1:], strict=True):
        if logprob is None:
            raise BadAnswer(f"the prompt's token {token} has no log-probability")
        found.append(logprob)
    return found


def _versions(sampled: Sampled, expected: Expected) -> tuple[int, ...]:
    """The version of each token: that of its span, or the request's if there are no spans."""
    count = len(sampled.token_ids)
    if sampled.spans is None:
        return (expected.version,) * count
    versions: list[int] = []
    for span in sampled.spans:
        if span.start != len(versions) or not span.version.isdigit():
            raise BadAnswer(f"the weight versions are {[tuple(span) for span in sampled.spans]}")
        versions += [int(span.version)] * (span.end - span.start)
    if len(versions) != count:
        raise BadAnswer(f"{count} tokens came with the weight versions of {len(versions)}")
    return tuple(versions)


def _supports(sampled: Sampled) -> tuple[Sequence[int], ...]:
    if sampled.supports is None:
        raise NoSupport
    if len(sampled.supports) != len(sampled.token_ids):
        count = len(sampled.supports)
        raise BadAnswer(f"{len(sampled.token_ids)} tokens came with the supports of {count}")
    for token, support in zip(sampled.token_ids, sampled.supports, strict=True):
        if token not in support:
            raise BadAnswer(f"token {token} is not in its support of {len(support)} tokens")
    return tuple(sampled.supports)


def _experts(sampled: Sampled, expected: Expected) -> NDArray[np.integer[Any]]:
    experts, computed = sampled.experts, expected.prompt_length + len(sampled.token_ids) - 1
    if experts is None:
        raise NotReported(
            "the response does not report the experts of each token: start it with "
            "--enable-return-routed-experts (vLLM has it on GPUs only), or give "
            "replay_routing=False"
        )
    if experts.ndim != 3 or len(experts) < computed:
        raise BadAnswer(f"the experts of {computed} tokens have the shape {list(experts.shape)}")
    return experts[:computed]


def _finish_reason(sampled: Sampled, expected: Expected) -> FinishReason:
    tokens, stopped_by = sampled.token_ids, sampled.stopped_by
    if sampled.finish_reason == "stop":
        if isinstance(stopped_by, str):
            return FinishReason.STOP_STRING
        if tokens and tokens[-1] in expected.stop_token_ids:
            return FinishReason.STOP_TOKEN
        raise BadAnswer(f"it stopped at {stopped_by}, which is no stop token of the request")
    if sampled.finish_reason == "length":
        full = expected.prompt_length + len(tokens) >= expected.context_window
        cut = full and len(tokens) < expected.max_tokens
        return FinishReason.CONTEXT_FULL if cut else FinishReason.LENGTH
    raise BadAnswer(f"the finish_reason is {sampled.finish_reason!r}")
