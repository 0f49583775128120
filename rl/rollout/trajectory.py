"""The record of an episode: tokens, turns, ending, and everything that a replay needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from agents.completion import FinishReason
from agents.segment import NOT_SAMPLED, Segment
from envs.episode import EnvToolCall, StopReason
from envs.record import EpisodeId, RecordedCall, RecordedTool

EQUAL = 1e-9
"""Returns count as equal if they differ by at most this share of the largest reward."""
MEASURES = ("seconds", "retries", "status")
"""What a run measures of each tool call. A file of its own holds these values, because earlier
versions read no lines with unknown fields (:mod:`rl.rollout.trajectory_files`)."""

BY_PARTNER = "partner"
"""The ``finish_reason`` of a turn whose role a partner played (:mod:`rl.policies.partner`)."""

__all__ = [
    "BY_PARTNER",
    "NOT_SAMPLED",
    "Continuations",
    "Segment",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
]


@dataclass(slots=True)
class Turn:
    """One action and the environment's reply."""

    action: str
    """The text that the environment received."""
    observation: str
    finish_reason: str
    """Why the sampling ended, or :data:`BY_PARTNER`."""
    num_tokens: int
    """Number of sampled tokens."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Contributions by name, which add up to the turn's reward."""
    scores: dict[str, float] = field(default_factory=dict)
    tool_calls: list[EnvToolCall] = field(default_factory=list)
    """The agent's calls, including malformed ones. ``Trajectory.calls`` records the requests that
    reached tool services, with the data that a replay needs."""
    generate_s: float = 0.0
    """Seconds from the request to the policy until its answer."""
    env_s: float = 0.0
    """Seconds in the environment's step."""
    role: str = ""
    """The role that acted, in an episode with several roles; otherwise empty."""
    unrecorded_tokens: int = 0
    """Number of sampled tokens without ids, which a chat API reported."""
    value: float | None = None
    """Monte Carlo value of the state at the start of the turn (``rl.rollout.vine``), or None."""

    @property
    def by_partner(self) -> bool:
        """Whether a partner played the role. The turn then has no recorded token."""
        return self.finish_reason == BY_PARTNER

    @property
    def reward(self) -> float:
        """The turn's reward, which is the sum of its contributions."""
        return sum(self.rewards.values())


@dataclass(slots=True)
class Continuations:
    """Counts of the continuations that valued an episode's turns. No continuation is trained on."""

    count: int = 0
    failed: int = 0
    """Number of failed continuations, which do not contribute to a value."""
    num_sampled: int = 0
    """Number of sampled tokens in the continuations that did not fail."""


@dataclass(slots=True)
class Trajectory:
    """One episode: tokens, turns and ending."""

    env_id: str
    env_options: dict[str, Any]
    task: int
    """Index of the task in its split."""
    seed: int
    member: int
    """Index of the episode in its group."""
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    stop_reason: str | None = None
    """Why the episode was truncated, or None if it was not truncated."""
    failure: str | None = None
    """The infrastructure failure, or None. A failed episode has no reward and counts in no
    baseline."""
    attempts: int = 1
    """Number of attempts, including the first."""
    shaping: dict[str, float] = field(default_factory=dict)
    """Contributions by name that are added to the environment's rewards (``rl.credit.shaping``)."""
    reward_weight: float = 1.0
    """Weight of the environment's rewards in training. ``reward`` itself is not weighted."""
    outcome: float | None = None
    """Success of the episode from 0 to 1: the environment's score, or the return as a share of its
    range. None if the episode failed, or if the file is older than this field."""
    part: str = ""
    """In a mixture of environments, the name of the part that was played. The id, the options and
    the task then belong to the part."""
    system: str | None = None
    """The system message."""
    observation: str = ""
    """The first observation."""
    calls: list[RecordedCall] = field(default_factory=list)
    """Requests to tools and their results. ``envs.replay`` uses them to play the episode again."""
    tools: dict[str, RecordedTool] = field(default_factory=dict)
    """Descriptions of the tools, by service."""
    continuations: Continuations = field(default_factory=Continuations)
    """Counts of the continuations that valued the turns."""
    advantages: Sequence[float] = ()
    """The advantage of each trained token, for callbacks: the tokens of the first role, then of the
    next role. A learner in another process leaves the list empty. ``step-*.learner.npz`` has the
    advantages of every learner that records them."""

    def fail(self, failure: Exception) -> None:
        """Record a failure. It replaces any other ending."""
        self.failure = f"{type(failure).__name__}: {failure}"
        self.terminated, self.truncated, self.stop_reason = False, False, None
        self.outcome = None

    def record_start(self, episode: EpisodeId, observation: str, system: str | None) -> None:
        """Record the start of the episode."""
        self.env_id, self.env_options = episode.env_id, asdict(episode.options)
        self.task, self.part = episode.task, episode.part
        self.seed = self.seed if episode.seed is None else episode.seed
        self.observation, self.system = observation, system

    @property
    def reward(self) -> float:
        """The undiscounted return, which is the sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def roles(self) -> tuple[str, ...]:
        """The trained roles that acted, in the order of their first turns.

        A single role is named "". Roles that partners played are not among them.
        """
        return tuple(dict.fromkeys(segment.role for segment in self.segments)) or ("",)

    @property
    def named_roles(self) -> tuple[str, ...]:
        """The roles that acted or were rewarded. Empty in an episode with one role."""
        if not self._has_names:
            return ()
        paid = (_owner(name, turn) for turn in self.turns for name in turn.rewards)
        acted = (turn.role for turn in self.turns)
        return tuple(dict.fromkeys([*filter(None, self.roles), *acted, *paid]))

    def rewards_of(self, role: str) -> list[float]:
        """The reward of a role at each turn of the episode.

        In an episode with named roles, a contribution called ``ROLE/NAME`` belongs to that role,
        even if the role never acts. Any other contribution belongs to the role that acted.
        """
        named = self._has_names
        return [
            sum(
                value
                for name, value in turn.rewards.items()
                if (_owner(name, turn) if named else turn.role) == role
            )
            for turn in self.turns
        ]

    @property
    def _has_names(self) -> bool:
        """Whether the episode has named roles."""
        return any(self.roles) or any(turn.role for turn in self.turns)

    @property
    def shaping_sum(self) -> float:
        """The sum of the contributions of all shapings."""
        return sum(self.shaping.values())

    @property
    def shaped_reward(self) -> float:
        """The return from which advantages are computed: the weighted return plus all shapings."""
        return self.reward_weight * self.reward + self.shaping_sum

    @property
    def rewards(self) -> dict[str, float]:
        """The contributions of all turns, summed by name."""
        total: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.rewards.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @property
    def cut_for_length(self) -> bool:
        """Whether a token limit ended the answer or the episode."""
        if self.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_FULL):
            return True
        ends = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
        return bool(self.turns) and self.turns[-1].finish_reason in ends

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens, with those that a chat API only counted."""
        recorded = sum(int(np.count_nonzero(segment.loss_mask)) for segment in self.segments)
        return recorded + sum(turn.unrecorded_tokens for turn in self.turns)

    def check(self) -> None:
        """Assert every invariant. This is called before any training on the trajectory.

        Raises:
            AssertionError: the record contradicts itself.
        """
        endings = (self.terminated, self.truncated, self.failure is not None)
        assert sum(endings) == 1, f"an episode ends in exactly one way, not {endings}"
        assert (self.stop_reason is not None) == self.truncated, "stop_reason goes with truncated"
        for index, segment in enumerate(self.segments):
            segment.check()
            self._check_fork(index, segment)
        # A failed episode may lack its last turn, and is not trained on.
        if self.failure is None:
            self._check_turns()

    async def acheck(self) -> None:
        """Asynchronous form of :meth:`check`.

        Checks the sampling supports, which can be thousands of ids for a token, in a thread.

        Raises:
            AssertionError: the record contradicts itself.
        """
        if any(segment.supports for segment in self.segments):
            await asyncio.to_thread(self.check)
        else:
            self.check()

    def _check_turns(self) -> None:
        """Assert that the masks select the recorded number of tokens of each turn."""
        selected: Counter[int] = Counter()
        for segment in self.segments:
            trained = np.asarray(segment.loss_mask, dtype=np.bool_)
            turns, counts = np.unique(np.asarray(segment.turn_ids)[trained], return_counts=True)
            selected.update(dict(zip(turns.tolist(), counts.tolist(), strict=True)))
        sampled = Counter({index: turn.num_tokens for index, turn in enumerate(self.turns)})
        assert selected == sampled, (
            f"loss_mask selects {dict(selected)} tokens by turn, sampled were {dict(sampled)}"
        )

    def _check_fork(self, index: int, segment: Segment) -> None:
        """Assert that a forked segment shares its first tokens with an earlier segment."""
        if segment.parent is None:
            return
        assert 0 <= segment.parent < index, "a fork precedes its parent"
        parents = np.asarray(self.segments[segment.parent].token_ids)[: segment.offset]
        assert np.array_equal(np.asarray(segment.token_ids)[: segment.offset], parents), (
            "a fork's prefix is not its parent's"
        )

    @property
    def tool_calls(self) -> list[EnvToolCall]:
        """The agent's calls of all turns, in order."""
        return [call for turn in self.turns for call in turn.tool_calls]

    def to_json(self, *, tokens: bool = True) -> dict[str, Any]:
        """The trajectory as plain data, which fits into one line of JSON.

        The measures of tool calls are not part of it.

        Args:
            tokens: False leaves out the segments (``rl.rollout.token_table`` has their tokens).
        """
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "advantages"}
        record["segments"] = [segment.to_json() for segment in self.segments] if tokens else []
        record["turns"] = [asdict(turn) for turn in self.turns]
        for call in (call for turn in record["turns"] for call in turn["tool_calls"]):
            for name in MEASURES:
                del call[name]
        record["calls"] = [asdict(call) for call in self.calls]
        record["tools"] = {name: asdict(tool) for name, tool in self.tools.items()}
        record["continuations"] = asdict(self.continuations)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Trajectory:
        """The inverse of :meth:`to_json`; also reads lines that lack newer fields.

        Raises:
            ValueError: the record has a field that a trajectory lacks.
        """
        values = dict(record)
        unknown = sorted(values.keys() - {f.name for f in fields(cls)})
        if unknown:
            raise ValueError(f"field {unknown[0]!r} is unknown: a newer turnwise wrote the record")
        values["segments"] = [Segment(**segment) for segment in values["segments"]]
        values["turns"] = [
            Turn(**{**turn, "tool_calls": [EnvToolCall(**call) for call in turn["tool_calls"]]})
            for turn in values["turns"]
        ]
        values["calls"] = [RecordedCall(**call) for call in values["calls"]]
        values["tools"] = {name: RecordedTool(**said) for name, said in values["tools"].items()}
        values["continuations"] = Continuations(**values["continuations"])
        return cls(**values)


def _owner(name: str, turn: Turn) -> str:
    """The role to which a contribution belongs, in an episode with named roles."""
    return name.split("/")[0] if "/" in name else turn.role


@dataclass(slots=True)
class TrajectoryGroup:
    """Trajectories that start in the same state. GRPO compares their returns."""

    trajectories: list[Trajectory]
    dropped: bool = False
    """Whether the update leaves the group out (``rl.rollout.dynamic_sampling``)."""

    @property
    def finished(self) -> list[Trajectory]:
        """The members that did not fail."""
        return [t for t in self.trajectories if t.failure is None]

    @property
    def outcomes(self) -> list[float]:
        """The success of each finished member, from 0 to 1, or 0 if it is unknown."""
        return [t.outcome or 0.0 for t in self.finished]

    @property
    def is_constant(self) -> bool:
        """Whether all returns are equal, or fewer than two exist, so that every advantage is 0.

        Returns are compared up to rounding, relative to the largest single reward, so that .1 + .2
        equals .3. Each role is compared with the same role of the other members.
        """
        rewards = [x for t in self.finished for turn in t.turns for x in turn.rewards.values()]
        rounding = EQUAL * max(map(abs, rewards), default=0.0)
        return all(max(returns) - min(returns) <= rounding for returns in self.returns_by_role)

    @property
    def returns_by_role(self) -> list[list[float]]:
        """For each role of the finished members, its return in each member that has it."""
        return [
            [sum(t.rewards_of(role)) for t in self.finished if role in t.roles]
            for role in dict.fromkeys(role for t in self.finished for role in t.roles)
        ]
