"""Sampling parameters and completions, as plain data that does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FinishReason(StrEnum):
    """The reason why a completion ended."""

    STOP_TOKEN = "stop_token"
    """A stop token was sampled (end of turn, end of sequence). It is the last token."""
    STOP_STRING = "stop_string"
    """The decoded text contains one of the stop strings."""
    LENGTH = "length"
    """``max_tokens`` tokens were sampled."""
    CONTEXT_FULL = "context_full"
    """The model's context window is full."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one completion.

    Raises:
        ValueError: a value is outside its range.
    """

    temperature: float = 1.0
    """Divisor of the logits. 0 selects the likeliest token, with its log-probability at temperature
    1."""
    top_p: float = 1.0
    """Nucleus sampling: tokens are sampled from the smallest set with at least this probability."""
    top_k: int = 0
    """Number of likeliest tokens to sample from, before ``top_p``; 0 for all."""
    with_support: bool = True
    """Whether the completion reports each token's support: the ids that ``top_p`` and ``top_k``
    kept. Training needs the support."""
    with_experts: bool = False
    """Whether the completion reports the experts that computed each token, in a mixture of
    experts."""
    max_tokens: int = 256
    """Maximum number of sampled tokens."""
    stop: tuple[str, ...] = ()
    """Stop strings. Sampling ends with the token that completes one of them."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop tokens. Sampling ends after one of them."""
    seed: int | None = None
    """Seed of this completion. If None, the policy chooses one."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature ({self.temperature}) must be >= 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p ({self.top_p}) must be in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k ({self.top_k}) must be >= 0; 0 takes all tokens")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens ({self.max_tokens}) must be >= 1")

    @property
    def truncates(self) -> bool:
        """Whether top-p or top-k exclude tokens. False for greedy sampling."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)

    @property
    def needs_support(self) -> bool:
        """Whether the completion must report the sampling support."""
        return self.truncates and self.with_support


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that a policy sampled for one prompt, with the data that training needs."""

    token_ids: tuple[int, ...]
    """All sampled tokens, including the stop token and text after a stop string."""
    logprobs: tuple[float, ...]
    """Log-probability of each token in the sampling distribution, which includes the temperature
    and is normalised over the support that top-p and top-k kept."""
    versions: tuple[int, ...]
    """The policy version that sampled each token."""
    finish_reason: FinishReason
    supports: tuple[Sequence[int], ...] | None = None
    """For each token, the ids from which it was sampled. None if tokens were sampled from the whole
    vocabulary, or if the request does not need the support."""
    experts: NDArray[np.integer[Any]] | None = field(default=None, compare=False)
    """``[n, layers, k]``: the k experts that computed each token in each decoder layer, for the
    first n tokens of prompt and completion. The last sampled token was not computed. Zeros for a
    layer without experts. None if the request did not ask for them."""

    @property
    def last_token(self) -> int | None:
        """The last sampled token; None if there is none."""
        return self.token_ids[-1] if self.token_ids else None

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs) == len(self.versions)
        assert self.supports is None or len(self.supports) == len(self.token_ids)
