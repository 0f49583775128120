"""The base class's record of a running episode. It turns a reply into a step result.

This code runs once per turn; ``benchmarks/environments/steps.py`` measures it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.episode import EnvToolCall, Reply, StepResult, StopReason
from envs.token_budget import TokenBudget, scores_of

_new = tuple.__new__
"""Creates a StepResult faster than calling the class does."""


@dataclass(slots=True)
class Progress:
    """An episode's task and turns; snapshots hold a copy."""

    task_index: int
    seed: int | None
    """Seed of the reset."""
    budget: TokenBudget | None = None
    turns: int = 0
    over: bool = True
    """Whether no action is allowed: the episode ended or failed, or ``begin`` or ``turn`` is
    running."""
    tool_cost: float = 0.0
    """Sum of the costs of all tool calls so far."""

    def settle(self, reply: Reply, max_turns: int, env: object) -> StepResult:
        """Apply the environment's reply to the episode, and return the step result.

        Raises:
            TypeError: the reply is not a Reply, its observation is not a str, its rewards are not
                numbers with names, or one of its calls is not an EnvToolCall.
        """
        if type(reply) is not Reply:
            raise _not_a_reply(env, reply)
        observation, rewards, scores, tool_calls, terminated, stop_reason = reply
        if type(observation) is not str and not isinstance(observation, str):
            raise not_a_text(env, "turn", observation)
        self.turns = turns = self.turns + 1
        reward = 0.0
        if rewards:
            try:
                for contribution in rewards.values():
                    reward += contribution
            except (AttributeError, TypeError) as error:
                raise _not_rewards(env, rewards) from error
        if tool_calls:
            self._add_cost(tool_calls)
        if not terminated and stop_reason is None:
            if turns < max_turns:
                self.over = False
            else:
                stop_reason = StopReason.TURN_LIMIT
        info: dict[str, Any] = {
            "task": self.task_index,
            "turn": turns,
            "rewards": {**rewards} if rewards else {},
            "scores": {**scores} if scores else {},
            "stop_reason": stop_reason,
            "tool_calls": [*tool_calls] if tool_calls else [],
        }
        if self.budget is not None or self.tool_cost:
            info["scores"] |= self._scores()
        truncated = stop_reason is not None
        return _new(StepResult, (observation, reward, terminated, truncated, info))

    def _add_cost(self, tool_calls: Sequence[EnvToolCall]) -> None:
        for call in tool_calls:
            if not isinstance(call, EnvToolCall):
                raise TypeError(f"tool_calls must hold EnvToolCalls, not {type(call).__name__}")
            self.tool_cost += call.cost

    def _scores(self) -> dict[str, float]:
        """Scores that the base class adds: the token budget, if any, and the cost of tool calls."""
        return scores_of(self.budget) | ({"tool_cost": self.tool_cost} if self.tool_cost else {})


def not_a_text(env: object, method: str, observation: object) -> TypeError:
    """The error for an observation that is not a str."""
    return TypeError(
        f"{type(env).__name__}.{method} must give its observation as a str, not as "
        f"{type(observation).__name__}"
    )


def _not_rewards(env: object, rewards: object) -> TypeError:
    return TypeError(
        f"{type(env).__name__}.turn must name its rewards, each a number: "
        f'envs.finish({{"right": 1.0}}), not {rewards!r}'
    )


def _not_a_reply(env: object, reply: object) -> TypeError:
    return TypeError(
        f"{type(env).__name__}.turn must return envs.go_on(...), envs.finish(...) or "
        f"envs.cut(...), not {type(reply).__name__}"
    )
