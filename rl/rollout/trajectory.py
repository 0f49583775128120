"""The record of an episode: append-only tokens, and enough beside them to replay and score it.

A two-turn episode, written as list algebra (P prompt, A what the policy sampled, O observation)::

    token_ids = P0        + A0        + O1        + A1
    loss_mask = [0]*|P0|  + [1]*|A0|  + [0]*|O1|  + [1]*|A1|
    turn_ids  = [0]*|P0|  + [0]*|A0|  + [1]*|O1|  + [1]*|A1|

The tokens before a turn's action belong to that turn: they are what it was asked. Positions with
loss_mask 0 carry sampling_logprobs 0.0 and version -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
    parent: int | None = None
    """Index of the segment that this one forked from when the context was edited."""
    offset: int = 0
    """How many tokens it shares with its parent; these are trained there, once."""

    def append_context(self, token_ids: Sequence[int], turn: int) -> None:
        """Append tokens that were not sampled: a prompt or an observation."""
        count = len(token_ids)
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([0] * count)
        self.sampling_logprobs.extend([0.0] * count)
        self.versions.extend([NOT_SAMPLED] * count)
        self.turn_ids.extend([turn] * count)

    def append_completion(self, completion: Completion, turn: int) -> None:
        """Append what the policy sampled: the only tokens that are ever trained."""
        count = len(completion.token_ids)
        self.token_ids.extend(completion.token_ids)
        self.loss_mask.extend([1] * count)
        self.sampling_logprobs.extend(completion.logprobs)
        self.versions.extend(completion.versions)
        self.turn_ids.extend([turn] * count)

    def check(self) -> None:
        """Assert the invariants: equal lengths, masks and versions that agree, turns in order."""
        count = len(self.token_ids)
        columns = (self.loss_mask, self.sampling_logprobs, self.versions, self.turn_ids)
        assert all(len(column) == count for column in columns), "columns of unequal length"
        assert set(self.loss_mask) <= {0, 1}, "loss_mask holds something else than 0 and 1"
        for mask, version in zip(self.loss_mask, self.versions, strict=True):
            assert (version != NOT_SAMPLED) == bool(mask), "a version on a token nobody sampled"
        assert all(a <= b for a, b in zip(self.turn_ids, self.turn_ids[1:], strict=False)), (
            "turns out of order"
        )
        assert self.loss_mask[: self.offset].count(1) == 0, "a shared prefix is trained twice"

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class ToolCall:
    """One call of a tool in an episode, as it was asked and answered."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    error: str | None = None


@dataclass(slots=True)
class Turn:
    """One action and what it led to."""

    action: str
    """The text that the environment saw."""
    observation: str
    finish_reason: str
    num_tokens: int
    """Sampled tokens."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Named contributions; their sum is the turn's reward."""
    scores: dict[str, float] = field(default_factory=dict)
    tool_calls: list[ToolCall] = field(default_factory=list)
    generate_s: float = 0.0
    """Seconds from asking the policy to its answer."""
    env_s: float = 0.0
    """Seconds inside the environment's step."""

    @property
    def reward(self) -> float:
        """The turn's reward: the sum of its contributions."""
        return sum(self.rewards.values())


@dataclass(slots=True)
class Trajectory:
    """One episode: its tokens, its turns and how it ended."""

    env_id: str
    env_options: dict[str, Any]
    task: int
    """Index of the task in its split."""
    seed: int
    member: int
    """Index in its group."""
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    stop_reason: str | None = None
    """Set exactly when truncated."""
    failure: str | None = None
    """Infrastructure failure: the episode has no reward and enters no baseline."""

    @property
    def reward(self) -> float:
        """Undiscounted return: the sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def rewards(self) -> dict[str, float]:
        """Named contributions over all turns."""
        total: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.rewards.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @property
    def num_sampled(self) -> int:
        """How many tokens the policy sampled."""
        return sum(sum(segment.loss_mask) for segment in self.segments)

    def check(self) -> None:
        """Assert every invariant; called on each trajectory before it may be trained on.

        Raises:
            AssertionError: the record contradicts itself; training on it would be silent damage.
        """
        endings = (self.terminated, self.truncated, self.failure is not None)
        assert sum(endings) == 1, f"an episode ends in exactly one way, not {endings}"
        assert (self.stop_reason is not None) == self.truncated, "stop_reason goes with truncated"
        for index, segment in enumerate(self.segments):
            segment.check()
            assert segment.parent is None or segment.parent < index, "a fork precedes its parent"
        sampled = sum(turn.num_tokens for turn in self.turns)
        assert self.failure is not None or self.num_sampled == sampled, (
            f"loss_mask selects {self.num_sampled} tokens, the policy sampled {sampled}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, one line of trajectories.jsonl."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trajectory:
        """The inverse of :meth:`to_json`."""
        fields = dict(record)
        fields["segments"] = [Segment(**segment) for segment in fields["segments"]]
        fields["turns"] = [
            Turn(**{**turn, "tool_calls": [ToolCall(**call) for call in turn["tool_calls"]]})
            for turn in fields["turns"]
        ]
        return cls(**fields)


@dataclass(slots=True)
class TrajectoryGroup:
    """Trajectories that started in the same state: the members that GRPO compares."""

    trajectories: list[Trajectory]

    @property
    def finished(self) -> list[Trajectory]:
        """The members that have a reward: all but those that failed."""
        return [t for t in self.trajectories if t.failure is None]
