"""Append-only lists of tokens. Each token is marked as sampled, with its version, or as context.

A two-turn episode, with P for prompt, A for sampled action and O for observation::

    token_ids = P0        + A0        + O1        + A1
    loss_mask = [0]*|P0|  + [1]*|A0|  + [0]*|O1|  + [1]*|A1|
    turn_ids  = [0]*|P0|  + [0]*|A0|  + [1]*|O1|  + [1]*|A1|

The tokens before a turn's action belong to that turn. Positions with loss_mask 0 have
sampling_logprobs 0.0 and version -1.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.column import Column, column_of
from agents.completion import Completion

N = TypeVar("N", int, float)
NOT_SAMPLED = -1
"""The version of a token that no policy sampled."""
COLUMNS = {
    "token_ids": "int32",
    "loss_mask": "int8",
    "sampling_logprobs": "float64",
    "versions": "int32",
    "turn_ids": "int32",
}
"""The columns of a segment with a number for each token, and their types."""


@dataclass(slots=True)
class Segment:
    """One append-only token sequence; every column has one entry per token.

    The arguments for :data:`COLUMNS` can be lists. The attributes are
    :class:`~agents.column.Column`: sequences of Python numbers, which NumPy reads as arrays.
    """

    token_ids: MutableSequence[int] = field(default_factory=list)
    loss_mask: MutableSequence[int] = field(default_factory=list)
    """1 for a sampled token, 0 for a prompt or observation token."""
    sampling_logprobs: MutableSequence[float] = field(default_factory=list)
    versions: MutableSequence[int] = field(default_factory=list)
    turn_ids: MutableSequence[int] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    """Support of each sampled token: the ids that top-k and top-p kept, or an empty list for all
    ids. If sampling was never truncated, the whole list is empty."""
    experts: NDArray[np.integer[Any]] | None = field(default=None, compare=False)
    """``[n, layers, k]``: the experts that computed each of the first n tokens; see
    :attr:`agents.completion.Completion.experts`. None if they were not recorded."""
    parent: int | None = None
    """Index of the segment from which this one forked when the context was edited, or None."""
    offset: int = 0
    """Number of tokens shared with the parent. They are trained only in the parent."""
    role: str = ""
    """Role of the conversation, in an episode with several roles; otherwise empty."""

    def __post_init__(self) -> None:
        for name, dtype in COLUMNS.items():
            setattr(self, name, column_of(getattr(self, name), dtype))
        if self.experts is not None:
            self.experts = np.asarray(self.experts)

    def append_context(self, token_ids: Sequence[int], turn: int) -> None:
        """Append tokens that are not sampled: a prompt or an observation."""
        count = len(token_ids)
        self.token_ids.extend(token_ids)
        _repeat(self.loss_mask, 0, count)
        _repeat(self.sampling_logprobs, 0.0, count)
        _repeat(self.versions, NOT_SAMPLED, count)
        _repeat(self.turn_ids, turn, count)
        if self.supports:
            self.supports.extend([[]] * count)

    def append_completion(self, completion: Completion, turn: int) -> None:
        """Append sampled tokens. Only these tokens are trained."""
        count = len(completion.token_ids)
        if completion.supports is not None and not self.supports:
            self.supports = [[]] * len(self.token_ids)
        self.token_ids.extend(completion.token_ids)
        _repeat(self.loss_mask, 1, count)
        self.sampling_logprobs.extend(completion.logprobs)
        self.versions.extend(completion.versions)
        _repeat(self.turn_ids, turn, count)
        if completion.supports is not None:
            self.supports.extend([*support] for support in completion.supports)
        elif self.supports:
            self.supports.extend([[]] * count)
        if completion.experts is not None:
            # Tokens of earlier turns keep the experts with which those turns were sampled.
            known = self.experts if self.experts is not None else completion.experts[:0]
            self.experts = np.concatenate([known, completion.experts[len(known) :]])

    def copy(self) -> Segment:
        """An independent copy."""
        twin = replace(self, supports=[*self.supports])
        for name, dtype in COLUMNS.items():
            setattr(twin, name, column_of(getattr(self, name), dtype).copy())
        return twin

    def to_json(self) -> dict[str, Any]:
        """The constructor's arguments by name, as plain data."""
        record: dict[str, Any] = {name: [*getattr(self, name)] for name in COLUMNS}
        record["supports"] = [[*support] for support in self.supports]
        record["experts"] = None if self.experts is None else self.experts.tolist()
        return record | {"parent": self.parent, "offset": self.offset, "role": self.role}

    def check(self) -> None:
        """Assert the invariants: equal lengths, consistent columns, turns in order."""
        count = len(self.token_ids)
        assert all(len(getattr(self, name)) == count for name in COLUMNS), (
            "columns of unequal length"
        )
        mask, turn_ids = np.asarray(self.loss_mask), np.asarray(self.turn_ids)
        assert ((mask == 0) | (mask == 1)).all(), "loss_mask holds something else than 0 and 1"
        assert (mask == (np.asarray(self.versions) != NOT_SAMPLED)).all(), (
            "a version on a token that is not sampled"
        )
        self._check_logprobs()
        self._check_supports()
        assert self.experts is None or len(self.experts) <= count, "experts of tokens that are none"
        assert (turn_ids[1:] >= turn_ids[:-1]).all(), "turns out of order"
        assert 0 <= self.offset <= count, "the shared prefix is longer than the segment"
        assert self.parent is not None or self.offset == 0, "a prefix is shared with no parent"
        assert not mask[: self.offset].any(), "a shared prefix is trained twice"

    def _check_logprobs(self) -> None:
        """Assert that sampled tokens, and no others, have log-probabilities."""
        mask, logprobs = np.asarray(self.loss_mask), np.asarray(self.sampling_logprobs)
        # Comparisons with nan are false.
        right = np.where(mask, (logprobs <= 0) & (logprobs > -np.inf), logprobs == 0)
        if not right.all():
            wrong = int(np.argmin(right))
            raise AssertionError(
                f"{self.sampling_logprobs[wrong]} is no log-probability of a token with loss_mask "
                f"{self.loss_mask[wrong]}"
            )

    def _check_supports(self) -> None:
        """Assert that only sampled tokens have a support, and that each support has its token."""
        if not self.supports:
            return
        assert len(self.supports) == len(self.token_ids), "supports are not one per token"
        for token, mask, support in zip(self.token_ids, self.loss_mask, self.supports, strict=True):
            assert mask or not support, "a support of a token that is not sampled"
            assert not support or token in support, f"token {token} is not in its support"

    def __len__(self) -> int:
        return len(self.token_ids)


def _repeat(column: MutableSequence[N], value: N, count: int) -> None:
    """Append ``value`` to a column ``count`` times."""
    if isinstance(column, Column):
        column.repeat(value, count)
    else:
        column.extend([value] * count)
