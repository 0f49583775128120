"""What a policy is asked for and what it answers: plain data, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP_TOKEN = "stop_token"
    """A stop token id was sampled (end of turn, end of sequence); it is the last token."""
    STOP_STRING = "stop_string"
    """The decoded text contains one of the stop strings."""
    LENGTH = "length"
    """``max_tokens`` tokens were sampled."""
    CONTEXT_FULL = "context_full"
    """The model's context window is full."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one completion is sampled.

    Raises:
        ValueError: a value is outside its range.
    """

    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy, and then logprobs are those at temperature 1."""
    top_p: float = 1.0
    """Nucleus: the smallest set of tokens whose mass reaches it is sampled from."""
    top_k: int = 0
    """At most so many of the likeliest tokens are sampled from, before ``top_p`` looks at what is
    left; 0: all."""
    with_support: bool = True
    """Whether the completion tells what ``top_p`` and ``top_k`` left. Training needs it."""
    max_tokens: int = 256
    """At most this many tokens are sampled."""
    stop: tuple[str, ...] = ()
    """Stop strings: generation halts at the token that completes one of them."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop tokens: generation halts after one of them."""
    seed: int | None = None
    """Seeds this completion's own generator; None takes fresh randomness from the policy's."""

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
        """Whether some tokens cannot be sampled; greedy sampling is not meant."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)

    @property
    def needs_support(self) -> bool:
        """Whether the completion must tell which tokens could be sampled."""
        return self.truncates and self.with_support


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that a policy sampled for one prompt, each with what training needs of it."""

    token_ids: tuple[int, ...]
    """Every sampled token, the stop token included; what overshoots a stop string is kept too."""
    logprobs: tuple[float, ...]
    """Log-probability of each token in the distribution that it was sampled from: under the
    temperature, and over what top-p and top-k left."""
    versions: tuple[int, ...]
    """The policy version that sampled each token."""
    finish_reason: FinishReason
    supports: tuple[Sequence[int], ...] | None = None
    """For each token the ids of those that it was sampled from; None where nothing was cut, or
    where nobody asked."""

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs) == len(self.versions)
        assert self.supports is None or len(self.supports) == len(self.token_ids)
