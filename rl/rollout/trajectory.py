"""The record of an episode: its tokens, its turns, how it ended, and what replaying it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import compress
from typing import Any

from agents.completion import FinishReason
from agents.segment import NOT_SAMPLED, Segment
from envs.episode import StopReason
from envs.record import EpisodeId, RecordedCall, RecordedTool

EQUAL = 1e-9
"""Returns are equal where they differ by at most this share of the largest reward."""

__all__ = [
    "NOT_SAMPLED",
    "Continuations",
    "Segment",
    "ToolCall",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
]


@dataclass(slots=True)
class ToolCall:
    """One call of a tool in an episode, as it was asked and answered."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    error: str | None = None
    cost: float = 0.0
    """In the tool's own unit."""


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
    role: str = ""
    """Who took the action, in an episode of several roles."""
    value: float | None = None
    """What the policy would earn from the turn's beginning on, by trial (``rl.rollout.vine``)."""

    @property
    def reward(self) -> float:
        """The turn's reward: the sum of its contributions."""
        return sum(self.rewards.values())


@dataclass(slots=True)
class Continuations:
    """What was played from copies of an episode, to value its turns; nothing is trained on it."""

    count: int = 0
    failed: int = 0
    """Of these, how many failed and count in no value."""
    num_sampled: int = 0
    """Tokens that the policy sampled in those that did not fail."""


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
    attempts: int = 1
    """How often it was begun: once, and again after each failure that could be retried."""
    shaping: dict[str, float] = field(default_factory=dict)
    """Named contributions beside the environment's rewards (``rl.credit.shaping``)."""
    reward_weight: float = 1.0
    """What the environment's rewards count for in training; they stay what they are."""
    part: str = ""
    """Of a mixture of environments: the part that was played, whose id, options and task these
    are."""
    system: str | None = None
    """The system message."""
    observation: str = ""
    """The first observation."""
    calls: list[RecordedCall] = field(default_factory=list)
    """What tools were asked and answered: with it ``envs.replay`` plays the episode again."""
    tools: dict[str, RecordedTool] = field(default_factory=dict)
    """What they said of themselves, by service."""
    continuations: Continuations = field(default_factory=Continuations)
    """What was played to value its turns."""
    advantages: list[float] = field(default_factory=list)
    """For callbacks: the advantage of each trained token, role after role. No file has it; a
    learner in another process leaves it empty."""

    def fail(self, failure: Exception) -> None:
        """The episode failed: however it ended, it has no reward."""
        self.failure = f"{type(failure).__name__}: {failure}"
        self.terminated, self.truncated, self.stop_reason = False, False, None

    def begun(self, episode: EpisodeId, observation: str, system: str | None) -> None:
        """Write down how the episode began."""
        self.env_id, self.env_options = episode.env_id, asdict(episode.options)
        self.task, self.part = episode.task, episode.part
        self.seed = self.seed if episode.seed is None else episode.seed
        self.observation, self.system = observation, system

    @property
    def reward(self) -> float:
        """Undiscounted return: the sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def roles(self) -> tuple[str, ...]:
        """Who spoke, in the order of their first words; one without a name where it was one."""
        return tuple(dict.fromkeys(segment.role for segment in self.segments)) or ("",)

    @property
    def named_roles(self) -> tuple[str, ...]:
        """The names of those who spoke or were paid; none in an episode of one role."""
        if not any(self.roles):
            return ()
        paid = (_owner(name, turn) for turn in self.turns for name in turn.rewards)
        return tuple(dict.fromkeys([*self.roles, *paid]))

    def rewards_of(self, role: str) -> list[float]:
        """What each turn of the episode pays a role.

        In an episode of named roles a contribution called ``ROLE/NAME`` is that role's, whether or
        not it ever speaks. Any other contribution is the role's that acted.
        """
        named = any(self.roles)
        return [
            sum(
                value
                for name, value in turn.rewards.items()
                if (_owner(name, turn) if named else turn.role) == role
            )
            for turn in self.turns
        ]

    @property
    def shaped_reward(self) -> float:
        """What advantages see: the return, by its weight, and what shaping adds to it."""
        return self.reward_weight * self.reward + sum(self.shaping.values())

    @property
    def rewards(self) -> dict[str, float]:
        """Named contributions over all turns."""
        total: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.rewards.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @property
    def cut_for_length(self) -> bool:
        """Whether tokens ran out: an answer's, the episode's or the context window's."""
        if self.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_FULL):
            return True
        ends = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
        return bool(self.turns) and self.turns[-1].finish_reason in ends

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
            self._check_fork(index, segment)
        # A failed episode may lack its last turn; nothing is trained on it.
        if self.failure is None:
            self._check_turns()

    def _check_turns(self) -> None:
        """Assert that the masks select what each turn says was sampled in it."""
        selected: Counter[int] = Counter()
        for segment in self.segments:
            selected.update(compress(segment.turn_ids, segment.loss_mask))
        sampled = Counter({index: turn.num_tokens for index, turn in enumerate(self.turns)})
        assert selected == sampled, (
            f"loss_mask selects {dict(selected)} tokens by turn, sampled were {dict(sampled)}"
        )

    def _check_fork(self, index: int, segment: Segment) -> None:
        """Assert that a fork goes on from an earlier segment, with that one's tokens."""
        if segment.parent is None:
            return
        assert 0 <= segment.parent < index, "a fork precedes its parent"
        shared = self.segments[segment.parent].token_ids[: segment.offset]
        assert segment.token_ids[: segment.offset] == shared, "a fork's prefix is not its parent's"

    def to_json(self) -> dict[str, Any]:
        """Plain data, one line of trajectories.jsonl."""
        record = asdict(self)
        del record["advantages"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trajectory:
        """The inverse of :meth:`to_json`."""
        fields = dict(record)
        fields["segments"] = [Segment(**segment) for segment in fields["segments"]]
        fields["turns"] = [
            Turn(**{**turn, "tool_calls": [ToolCall(**call) for call in turn["tool_calls"]]})
            for turn in fields["turns"]
        ]
        fields["calls"] = [RecordedCall(**call) for call in fields["calls"]]
        fields["tools"] = {name: RecordedTool(**said) for name, said in fields["tools"].items()}
        fields["continuations"] = Continuations(**fields["continuations"])
        return cls(**fields)


def _owner(name: str, turn: Turn) -> str:
    """Whom a contribution pays, in an episode of named roles."""
    return name.split("/")[0] if "/" in name else turn.role


@dataclass(slots=True)
class TrajectoryGroup:
    """Trajectories that started in the same state: the members that GRPO compares."""

    trajectories: list[Trajectory]
    dropped: bool = False
    """Left out of the update by dynamic sampling."""

    @property
    def finished(self) -> list[Trajectory]:
        """The members that have a reward: all but those that failed."""
        return [t for t in self.trajectories if t.failure is None]

    @property
    def is_constant(self) -> bool:
        """Whether all returns are equal, or there are none to compare: every advantage is 0.

        Equal but for rounding, which is relative to the largest single reward: .1 + .2 is .3. Roles
        are compared with their like.
        """
        rewards = [x for t in self.finished for turn in t.turns for x in turn.rewards.values()]
        rounding = EQUAL * max(map(abs, rewards), default=0.0)
        for role in {role for t in self.finished for role in t.roles}:
            returns = [sum(t.rewards_of(role)) for t in self.finished if role in t.roles]
            if max(returns) - min(returns) > rounding:
                return False
        return True
