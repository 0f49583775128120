"""The plain records of an episode: actions, replies, step results, and the ways to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from envs.budget import TokenBudget, scores_of
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

    finish_reason: str | None

    def __new__(cls, text: str, finish_reason: str | None = None) -> Self:
        """Make an action of ``text``."""
        action = super().__new__(cls, text)
        action.finish_reason = finish_reason
        return action


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
class Reply:
    """What an author's ``turn`` answers; made by :func:`go_on` and :func:`finish`."""

    observation: str
    rewards: Mapping[str, float]
    """Named contributions of this turn; they add up to its reward."""
    scores: Mapping[str, float]
    """Raw scores that are not rewards (tests passed, F1), for logs."""
    done: bool
    stop_reason: StopReason | None = None
    tool_calls: Sequence[EnvToolCall] = ()


def go_on(
    observation: str,
    rewards: Mapping[str, float] | None = None,
    *,
    scores: Mapping[str, float] | None = None,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode continues with this observation."""
    return Reply(observation, rewards or {}, scores or {}, False, None, tool_calls)


def finish(
    rewards: Mapping[str, float],
    observation: str = "",
    *,
    scores: Mapping[str, float] | None = None,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode is over by the agent's doing: terminated."""
    return Reply(observation, rewards, scores or {}, True, None, tool_calls)


def cut(
    reason: StopReason,
    rewards: Mapping[str, float] | None = None,
    observation: str = "",
    *,
    scores: Mapping[str, float] | None = None,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The episode is cut short by the environment: truncated."""
    return Reply(observation, rewards or {}, scores or {}, True, reason, tool_calls)


@dataclass(slots=True)
class Progress:
    """What the base class knows of a running episode; copied into snapshots with the state."""

    task_index: int
    seed: int | None
    """What the reset was given."""
    turns: int = 0
    over: bool = True
    """No action may be taken: it ended or failed, or is waiting for its begin or its turn."""
    budget: TokenBudget | None = None
    tool_cost: float = 0.0
    """Of all calls so far."""

    def book(self, tool_calls: Sequence[EnvToolCall]) -> None:
        """Add what a turn's calls cost.

        Raises:
            TypeError: one is no :class:`EnvToolCall`.
        """
        for call in tool_calls:
            if not isinstance(call, EnvToolCall):
                raise TypeError(f"tool_calls must hold EnvToolCalls, not {type(call).__name__}")
            self.tool_cost += call.cost

    def scores(self) -> dict[str, float]:
        """The token budget if there is one, and the calls' cost if there is some."""
        return scores_of(self.budget) | ({"tool_cost": self.tool_cost} if self.tool_cost else {})


class StepResult(NamedTuple):
    """What a step returns, in Gymnasium's order."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
