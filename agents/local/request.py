"""Requests that are queued or run, and the rows that they use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.completion import Completion, FinishReason, SamplingParams
from agents.local.stops import StopStrings


class Token(NamedTuple):
    """A sampled token."""

    id: int
    logprob: float
    support: list[int]
    """Ids of the tokens that top-k and top-p kept. Empty if they kept all tokens, or if the request
    does not need the support."""


@dataclass(slots=True, eq=False)
class Request:
    """One queued or running completion."""

    prompt_ids: list[int]
    sampling: SamplingParams
    session: str | None = None
    stops: StopStrings | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    experts: NDArray[np.integer[Any]] | None = None
    finish_reason: FinishReason | None = None
    uniforms: Iterator[float] = field(default_factory=lambda: iter(()))
    slot: Slot | None = None
    asked_at: float = field(default_factory=time.monotonic)
    placed_at: float | None = None
    """Time at which the request got its row, or None while it is queued."""

    def longest(self, context_window: int) -> int:
        """Maximum number of tokens of prompt and completion together."""
        return min(len(self.prompt_ids) + self.sampling.max_tokens, context_window)

    @property
    def num_computed(self) -> int:
        """Number of tokens of prompt and completion that the model read: all but the last."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    def queued_s(self) -> float:
        """Seconds that the request waited for a row, so far."""
        return (self.placed_at or time.monotonic()) - self.asked_at

    def append(self, token: Token, version: int, context_window: int) -> bool:
        """Record one sampled token. Returns whether it is the last."""
        self.token_ids.append(token.id)
        self.logprobs.append(token.logprob)
        self.supports.append(token.support)
        self.versions.append(version)
        if token.id in self.sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP_TOKEN
        elif self.stops is not None and self.stops.completed_by(self.token_ids):
            self.finish_reason = FinishReason.STOP_STRING
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        elif len(self.prompt_ids) + len(self.token_ids) >= context_window:
            self.finish_reason = FinishReason.CONTEXT_FULL
        return self.finish_reason is not None

    def completion(self) -> Completion:
        """The finished completion."""
        assert self.finish_reason is not None
        return Completion(
            tuple(self.token_ids),
            tuple(self.logprobs),
            tuple(self.versions),
            self.finish_reason,
            tuple(self.supports) if self.sampling.needs_support else None,
            self.experts,
        )


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the scheduler. Its index changes when rows are swapped."""

    index: int
    request: Request | None = None
    session: str | None = None
    """The episode whose tokens the row keeps between turns."""
    last_used: int = 0

    def worth_keeping(self) -> tuple[bool, int]:
        """Sort key of idle rows: the row with the lowest key is reused first.

        Rows without an episode come first, and among equals the least recently used row.
        """
        return self.session is not None, self.last_used
