"""What vLLM is asked of sampling and what its answers must hold, over HTTP or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agents.completion import Completion, FinishReason, SamplingParams

POISONED = -9999.0
"""What vLLM writes for a log-probability that is not a number: its weights or its cache are bad."""
UNBOUNDED = (
    "tells with every token what it was sampled from, the whole vocabulary where nothing bounds "
    "it: give sampling.top_k and eval.top_k, or start it without --return-sampling-mask"
)
ROUNDING = 1e-5
"""By how much a log-probability may come out above 0."""


class BadAnswer(Exception):
    """Raised when an answer does not hold what it should; it says what is missing."""


class NoSupport(Exception):
    """Raised when an answer does not tell which tokens could be sampled, and must."""

    def __init__(self) -> None:
        super().__init__(
            "it does not tell which tokens top_p and top_k left, without which no importance ratio "
            "is right: start it with --return-sampling-mask (vLLM has it on GPUs only), or sample "
            "with top_p=1 and top_k=0"
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is read against."""

    prompt_length: int
    max_tokens: int
    context_window: int
    stop_token_ids: tuple[int, ...]
    version: int
    """The weights' version when the request was sent."""
    needs_support: bool = False
    """Whether it must tell which tokens could be sampled."""

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], sampling: SamplingParams, window: int, version: int
    ) -> Asked:
        """What is asked by a request."""
        return cls(
            prompt_length=len(prompt_ids),
            max_tokens=sampling.max_tokens,
            context_window=window,
            stop_token_ids=sampling.stop_token_ids,
            version=version,
            needs_support=sampling.needs_support,
        )


class Span(NamedTuple):
    """Which weights sampled the tokens from ``start`` up to, without, ``end``."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion as vLLM tells it, not looked at yet."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span] | None
    """None where it tells no versions: then nothing but the asked one can be meant."""
    finish_reason: str | None
    stopped_by: int | str | None
    supports: Sequence[Sequence[int]] | None = None
    """Which tokens each could have been; None where it does not tell."""


def sampling_parameters(
    sampling: SamplingParams, *, prompt_logprobs: bool = False
) -> dict[str, Any]:
    """The sampling parameters, by vLLM's names for them.

    Every parameter that a model's ``generation_config.json`` may set is said, so that tokens come
    from the distribution that their log-probabilities are of.

    Args:
        sampling: how; only its own stop tokens end it, never those that vLLM adds.
        prompt_logprobs: whether the prompt's log-probabilities are asked for as well.
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


def completion_from(sampled: Sampled, asked: Asked) -> Completion:
    """The completion, when it can be believed.

    Raises:
        BadAnswer: something is missing, or its numbers are none.
        NoSupport: it must tell which tokens could be sampled.
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
        _versions(sampled, asked),
        _finish_reason(sampled, asked),
        _supports(sampled) if asked.needs_support else None,
    )


def scored(prompt_ids: Sequence[int], logprobs: Sequence[float | None] | None) -> list[float]:
    """The log-probability of each prompt token but the first.

    Args:
        prompt_ids: the prompt.
        logprobs: what vLLM tells of each of its tokens; None for none.

    Raises:
        BadAnswer: they are not all there.
    """
    if logprobs is None or len(logprobs) != len(prompt_ids):
        raise BadAnswer("the prompt's log-probabilities are missing")
    found = []
    for token, logprob in zip(prompt_ids[1:], logprobs[1:], strict=True):
        if logprob is None:
            raise BadAnswer(f"the prompt's token {token} has no log-probability")
        found.append(logprob)
    return found


def _versions(sampled: Sampled, asked: Asked) -> tuple[int, ...]:
    """The version of each token: half-open spans over the sampled tokens, or what was asked."""
    count = len(sampled.token_ids)
    if sampled.spans is None:
        return (asked.version,) * count
    versions: list[int] = []
    for span in sampled.spans:
        if span.start != len(versions) or not span.version.isdigit():
            raise BadAnswer(f"its weight versions are {[tuple(span) for span in sampled.spans]}")
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
            raise BadAnswer(f"token {token} was sampled from others, which are {len(support)}")
    return tuple(sampled.supports)


def _finish_reason(sampled: Sampled, asked: Asked) -> FinishReason:
    tokens, stopped_by = sampled.token_ids, sampled.stopped_by
    if sampled.finish_reason == "stop":
        if isinstance(stopped_by, str):
            return FinishReason.STOP_STRING
        if tokens and tokens[-1] in asked.stop_token_ids:
            return FinishReason.STOP_TOKEN
        raise BadAnswer(f"it stopped by {stopped_by}, which nobody asked for")
    if sampled.finish_reason == "length":
        full = asked.prompt_length + len(tokens) >= asked.context_window
        cut = full and len(tokens) < asked.max_tokens
        return FinishReason.CONTEXT_FULL if cut else FinishReason.LENGTH
    raise BadAnswer(f"its finish_reason is {sampled.finish_reason!r}")
