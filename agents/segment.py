"""Append-only tokens, each of which is marked as sampled (with its version) or as context.

A two-turn episode, as list algebra (P prompt, A sampled action, O observation)::

    token_ids = P0        + A0        + O1        + A1
    loss_mask = [0]*|P0|  + [1]*|A0|  + [0]*|O1|  + [1]*|A1|
    turn_ids  = [0]*|P0|  + [0]*|A0|  + [1]*|O1|  + [1]*|A1|

The tokens before a turn's action belong to that turn. Positions with loss_mask 0 have
sampling_logprobs 0.0 and version -1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_

from agents.completion import Completion

NOT_SAMPLED = -1
"""The version of a token that no policy sampled."""


@dataclass(slots=True)
class Segment:
    """One append-only token sequence; every list has one entry per token."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    """1 for a sampled token, 0 for a prompt or observation token."""
    sampling_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    """Support of each sampled token: the ids that top-k and top-p left; empty: all ids. Without any
    truncated sampling the list itself is empty."""
    parent: int | None = None
    """Index of the segment that this one forked from when the context was edited."""
    offset: int = 0
    """Number of tokens shared with the parent, which trains them."""
    role: str = ""
    """Role of the conversation, in an episode with several roles."""

    def append_context(self, token_ids: Sequence[int], turn: int) -> None:
        """Append tokens that are not sampled: a prompt or an observation."""
        count = len(token_ids)
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([0] * count)
        self.sampling_logprobs.extend([0.0] * count)
        self.versions.extend([NOT_SAMPLED] * count)
        self.turn_ids.extend([turn] * count)
        if self.supports:
            self.supports.extend([[]] * count)

    def append_completion(self, completion: Completion, turn: int) -> None:
        """Append sampled tokens, the only ones that are trained."""
        count = len(completion.token_ids)
        if completion.supports is not None and not self.supports:
            self.supports = [[]] * len(self.token_ids)
        self.token_ids.extend(completion.token_ids)
        self.loss_mask.extend([1] * count)
        self.sampling_logprobs.extend(completion.logprobs)
        self.versions.extend(completion.versions)
        self.turn_ids.extend([turn] * count)
        if completion.supports is not None:
            self.supports.extend([*support] for support in completion.supports)
        elif self.supports:
            self.supports.extend([[]] * count)

    def copy(self) -> Segment:
        """An independent copy."""
        return replace(
            self,
            token_ids=[*self.token_ids],
            loss_mask=[*self.loss_mask],
            sampling_logprobs=[*self.sampling_logprobs],
            versions=[*self.versions],
            turn_ids=[*self.turn_ids],
            supports=[*self.supports],
        )

    def check(self) -> None:
        """Assert the invariants: equal lengths, consistent columns, turns in order."""
        count = len(self.token_ids)
        columns = (self.loss_mask, self.sampling_logprobs, self.versions, self.turn_ids)
        assert all(len(column) == count for column in columns), "columns of unequal length"
        assert set(self.loss_mask) <= {0, 1}, "loss_mask holds something else than 0 and 1"
        assert self.loss_mask == [version != NOT_SAMPLED for version in self.versions], (
            "a version on a token that is not sampled"
        )
        self._check_logprobs()
        self._check_supports()
        assert self.turn_ids == sorted(self.turn_ids), "turns out of order"
        assert 0 <= self.offset <= count, "the shared prefix is longer than the segment"
        assert self.parent is not None or self.offset == 0, "a prefix is shared with no parent"
        assert self.loss_mask[: self.offset].count(1) == 0, "a shared prefix is trained twice"

    def _check_logprobs(self) -> None:
        """Assert that sampled tokens, and no others, have log-probabilities.

        The sum and the maximum are checked first, and single tokens only if these are wrong: an
        episode may have many tokens.
        """
        sampled = list(compress(self.sampling_logprobs, self.loss_mask))
        others = compress(self.sampling_logprobs, map(not_, self.loss_mask))
        # A sum is finite only if no number is infinite or nan. For any(), nan is true.
        if math.isfinite(sum(sampled)) and max(sampled, default=0.0) <= 0 and not any(others):
            return
        for mask, logprob in zip(self.loss_mask, self.sampling_logprobs, strict=True):
            # Chained so that nan fails.
            assert (-math.inf < logprob <= 0) if mask else logprob == 0, (
                f"{logprob} is no log-probability of a token with loss_mask {mask}"
            )

    def _check_supports(self) -> None:
        """Assert that only sampled tokens have a support, which contains the token."""
        if not self.supports:
            return
        assert len(self.supports) == len(self.token_ids), "supports are not one per token"
        for token, mask, support in zip(self.token_ids, self.loss_mask, self.supports, strict=True):
            assert mask or not support, "a support of a token that is not sampled"
            assert not support or token in support, f"token {token} is not in its support"

    def __len__(self) -> int:
        return len(self.token_ids)
