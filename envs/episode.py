"""The plain records of an episode: actions, replies, step results, and the ways to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tools.tool import ToolResult


class EnvFailure(RuntimeError):
    """Raised when an episode cannot go on for reasons that are not the agent's. Never a reward."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class OrderError(RuntimeError):
    """Raised by a step before the first reset or after an episode's end."""


class NotForkable(RuntimeError):
    """Raised when an environment whose state cannot be copied is asked for a snapshot or fork."""


class StopReason(StrEnum):
    """Why an episode was cut short. The first two are the rollout's, the others an env's own.

    Time is no reason: how long an episode takes says how fast this machine is, not how good the
    agent. One that takes too long is a failure (``rl.rollout.episode.EpisodeTimeout``).
    """

    TOKEN_LIMIT = "token_limit"
    """The episode's budget of sampled tokens is used up."""
    CONTEXT_FULL = "context_full"
    """The next prompt does not fit the model's context window."""
    TURN_LIMIT = "turn_limit"
    """``max_turns`` actions were taken."""
    INVALID_ACTIONS = "invalid_actions"
    """Too many actions in a row that the environment could not understand."""


class Action(str):
    """A text action that also carries why its generation ended; a plain ``str`` serves as well."""

    finish_reason: str | None = None

    def __new__(cls, text: str, finish_reason: str | None = None) -> Self:
        """Make an action of ``text``."""
        action = str.__new__(cls, text)
        if finish_reason is not None:
            action.finish_reason = finish_reason
        return action


class ToolResults(str):
    """An observation that is the results of calls, one each, for models with a role for tools."""

    results: tuple[tuple[str, str], ...] = ()
    """Tool and text of each, in the order of the calls."""

    def __new__(cls, text: str, results: Iterable[tuple[str, str]] = ()) -> Self:
        """Make an observation that reads as ``text``."""
        made = str.__new__(cls, text)
        made.results = tuple(results)
        return made

    @classmethod
    def of(cls, results: Iterable[tuple[str, str]]) -> Self:
        """The results as a text in Hermes's form, too."""
        rows = tuple(results)
        text = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for _, text in rows)
        return cls(text, rows)


def as_action(env: object, action: Any) -> Action:
    """Any text as an action.

    Raises:
        TypeError: it is none; ``env`` is named as who was given it.
    """
    if isinstance(action, Action):
        return action
    if isinstance(action, str):
        return Action(action)
    raise TypeError(f"{env}: an action must be a str, not {type(action).__name__}")


@dataclass(frozen=True, slots=True)
class EnvToolCall:
    """One tool call inside a turn, for the record."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    error: str | None = None
    cost: float = 0.0
    """In the tool's own unit; an episode's sum is its score ``tool_cost``."""

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any], result: ToolResult) -> Self:
        """The record of a call that was answered."""
        return cls(name, arguments, result.text, result.error, result.cost)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An episode frozen between two turns. It pickles; what it is restored into must match."""

    env_id: str
    payload: bytes = field(repr=False)


class StepResult(NamedTuple):
    """What a step returns, in Gymnasium's order."""

    observation: str
    reward: float
    """Of this turn: the sum of ``info["rewards"]``."""
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    """``rewards`` (named contributions), ``scores`` (raw figures that are no rewards: tests passed,
    F1), ``tool_calls`` and ``stop_reason``, ``task`` and ``turn``."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @property
    def rewards(self) -> dict[str, float]:
        """The named contributions of this turn."""
        named: dict[str, float] = self.info["rewards"]
        return named


class Reply(NamedTuple):
    """What an author's ``turn`` answers, made by :func:`go_on`, :func:`finish` or :func:`cut`."""

    observation: str
    rewards: Mapping[str, float]
    scores: Mapping[str, float]
    tool_calls: Sequence[EnvToolCall]
    terminated: bool = False
    """The episode is over by the agent's doing."""
    stop_reason: StopReason | None = None
    """Why the environment cut it short, if it did."""

    @property
    def reward(self) -> float:
        """Of this turn: the sum of ``rewards``."""
        return sum(self.rewards.values(), 0.0)

    @property
    def done(self) -> bool:
        """Whether the episode is over; the turn limit, which the base class keeps, not counted."""
        return self.terminated or self.stop_reason is not None


_new = tuple.__new__
_NOTHING: dict[str, float] = {}
"""Never changed: a plain one, which is looked at in less time than a MappingProxyType."""


def go_on(
    observation: str,
    rewards: Mapping[str, float] = _NOTHING,
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode continues with this observation."""
    # This runs in each turn, and tuple.__new__ is quicker than Reply.
    return _new(Reply, (observation, rewards, scores, tool_calls, False, None))


def finish(
    rewards: Mapping[str, float],
    observation: str = "",
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode is over by the agent's doing: terminated."""
    return Reply(observation, rewards, scores, tool_calls, terminated=True)


def cut(
    reason: StopReason,
    rewards: Mapping[str, float] = _NOTHING,
    observation: str = "",
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode is cut short by the environment: truncated."""
    return Reply(observation, rewards, scores, tool_calls, stop_reason=reason)
