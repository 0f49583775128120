"""Plain records of an episode: actions, replies, step results, tool calls, stop reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tools.syntax import split_reasoning
from tools.tool import ToolResult


class EnvFailure(RuntimeError):
    """Raised when infrastructure fails and the episode cannot continue.

    A failure is never a reward.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class OrderError(RuntimeError):
    """Raised by a step before the first reset, or after the end of an episode."""


class NotForkable(RuntimeError):
    """Raised by ``snapshot`` and ``fork`` when the environment's state cannot be copied."""


class StopReason(StrEnum):
    """Why an episode was truncated.

    The rollout sets the first two reasons, environments the others.

    There is no reason for time limits, because an episode's duration depends on the machine and not
    on the agent. An episode that takes too long fails (``rl.rollout.episode.EpisodeTimeout``).
    """

    TOKEN_LIMIT = "token_limit"
    """The episode's budget of sampled tokens is used up."""
    CONTEXT_FULL = "context_full"
    """The next prompt does not fit the model's context window."""
    TURN_LIMIT = "turn_limit"
    """``max_turns`` actions were taken."""
    INVALID_ACTIONS = "invalid_actions"
    """The environment could not parse several consecutive actions."""


class Action(str):
    """An action: a text, and the reason why its generation ended. A plain ``str`` also works."""

    finish_reason: str | None = None

    def __new__(cls, text: str, finish_reason: str | None = None) -> Self:
        """Make an action of ``text``."""
        action = str.__new__(cls, text)
        if finish_reason is not None:
            action.finish_reason = finish_reason
        return action

    @property
    def content(self) -> str:
        """The text without reasoning, in which environments look for answers.

        It is empty if a thought has no end. See ``tools.syntax.split_reasoning``.
        """
        return split_reasoning(self)[1]


class ToolResults(str):
    """An observation that consists of tool results, for chat templates with a role for tools."""

    results: tuple[tuple[str, str], ...] = ()
    """Tool name and text of each result, in the order of the calls."""

    def __new__(cls, text: str, results: Iterable[tuple[str, str]] = ()) -> Self:
        """Make an observation whose text is ``text``."""
        made = str.__new__(cls, text)
        made.results = tuple(results)
        return made

    @classmethod
    def of(cls, results: Iterable[tuple[str, str]]) -> Self:
        """Make an observation of these results. Its text has the format of Hermes."""
        rows = tuple(results)
        text = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for _, text in rows)
        return cls(text, rows)


def as_action(env: object, action: Any) -> Action:
    """``action`` as an :class:`Action`.

    Raises:
        TypeError: ``action`` is not a str; the message names ``env``.
    """
    if isinstance(action, Action):
        return action
    if isinstance(action, str):
        return Action(action)
    raise TypeError(f"{env}: an action must be a str, not {type(action).__name__}")


@dataclass(frozen=True, slots=True)
class EnvToolCall:
    """One tool call of a turn, with its result."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    error: str | None = None
    cost: float = 0.0
    """Cost in the tool's own unit. The score ``tool_cost`` is the sum over an episode."""
    seconds: float | None = field(default=None, compare=False)
    """Duration of the call with all attempts. None if it was not measured, or if the call did not
    reach the tool."""
    retries: int = field(default=0, compare=False)
    """Number of further attempts after failures of the tool's infrastructure."""
    status: str = field(default="", compare=False)
    """How the call ended in the tool's own terms (``tools.ToolResult.status``)."""

    @classmethod
    def of(
        cls,
        name: str,
        arguments: Mapping[str, Any],
        result: ToolResult,
        seconds: float | None = None,
    ) -> Self:
        """The record of a call with this result, which took ``seconds``."""
        return cls(
            name,
            arguments,
            result.text,
            result.error,
            result.cost,
            seconds,
            result.retries,
            result.status,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of an episode between two turns.

    A snapshot can be pickled, and restored in an environment with the same id and options.
    """

    env_id: str
    payload: bytes = field(repr=False)


class StepResult(NamedTuple):
    """The result of a step, with its fields in Gymnasium's order."""

    observation: str
    reward: float
    """The turn's reward, which is the sum of ``info["rewards"]``."""
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    """``rewards`` (contributions by name), ``scores`` (metrics that are not rewards, such as the
    share of passed tests), ``tool_calls``, ``stop_reason``, ``task`` and ``turn``."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @property
    def rewards(self) -> dict[str, float]:
        """The contributions to this turn's reward, by name."""
        named: dict[str, float] = self.info["rewards"]
        return named


class Reply(NamedTuple):
    """The result of ``turn``. Create it by :func:`go_on`, :func:`finish` or :func:`cut`."""

    observation: str
    rewards: Mapping[str, float]
    scores: Mapping[str, float]
    tool_calls: Sequence[EnvToolCall]
    terminated: bool = False
    """Whether the agent ended the episode."""
    stop_reason: StopReason | None = None
    """Why the environment truncated the episode, or None if it did not."""

    @property
    def reward(self) -> float:
        """The turn's reward, which is the sum of ``rewards``."""
        return sum(self.rewards.values(), 0.0)

    @property
    def done(self) -> bool:
        """Whether the reply ends the episode.

        The episode can also end at the turn limit, which the base class applies.
        """
        return self.terminated or self.stop_reason is not None


_new = tuple.__new__
_NOTHING: dict[str, float] = {}
"""Default value of ``rewards`` and ``scores``. No code modifies it. A dict is faster than a
MappingProxyType."""


def go_on(
    observation: str,
    rewards: Mapping[str, float] = _NOTHING,
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The reply that continues the episode with this observation."""
    # Runs in each turn: tuple.__new__ is faster than Reply.
    return _new(Reply, (observation, rewards, scores, tool_calls, False, None))


def finish(
    rewards: Mapping[str, float],
    observation: str = "",
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The reply that ends the episode because of the agent's action (``terminated``)."""
    return Reply(observation, rewards, scores, tool_calls, terminated=True)


def cut(
    reason: StopReason,
    rewards: Mapping[str, float] = _NOTHING,
    observation: str = "",
    scores: Mapping[str, float] = _NOTHING,
    tool_calls: Sequence[EnvToolCall] = (),
) -> Reply:
    """The reply that ends the episode early, because of a limit (``truncated``)."""
    return Reply(observation, rewards, scores, tool_calls, stop_reason=reason)
