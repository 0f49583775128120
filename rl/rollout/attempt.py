"""One attempt at an episode. It can be copied between two turns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agents.agent import Agent, ContextFull
from agents.policy import PolicyFailure
from envs.env import TextEnv
from envs.episode import Action, EnvFailure, EnvToolCall, StepResult
from envs.record import Recorder
from rl.rollout.context import PartnerFailure
from rl.rollout.trajectory import BY_PARTNER, Trajectory, Turn

LARGEST_NUMBER = 1e15
"""Largest magnitude of a reward or score. Squares of returns must fit into 32-bit floats."""
_LONGEST_STATUS = 80
"""Maximum number of characters of a tool call's status."""


@dataclass(slots=True)
class Attempt:
    """One attempt at an episode. The caller closes its environment."""

    env: TextEnv[Any, Any]
    trajectory: Trajectory
    recorder: Recorder
    """Records the environment's tool calls in the trajectory."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents of the trained roles, by role, in the order of their first turns."""
    partners: dict[str, Agent] = field(default_factory=dict)
    """Agents of the roles that partners play. The record does not have their tokens."""

    def record_segments(self) -> None:
        """Add the segments to the record that compaction began in the last turn."""
        segments = self.trajectory.segments
        recorded = {id(segment) for segment in segments}
        for agent in self.agents.values():
            segments.extend(s for s in (*agent.earlier, agent.segment) if id(s) not in recorded)

    async def fork(self, record: Trajectory, reseed: int | None = None) -> Attempt:
        """A copy in the same state, recorded in ``record``. The original stays unchanged.

        Args:
            record: receives a copy of the record so far.
            reseed: seed of the copy's environment. If None, the copy and the original draw the same
                random numbers.

        Raises:
            EnvFailure, NotForkable: the environment cannot be copied.
        """
        env = await self.env.afork(reseed)
        recorder = env.tool_tap
        assert isinstance(recorder, Recorder)
        agents = {role: agent.fork() for role, agent in self.agents.items()}
        partners = {role: agent.fork() for role, agent in self.partners.items()}
        record.segments = [s for agent in agents.values() for s in (*agent.earlier, agent.segment)]
        record.turns = [*self.trajectory.turns]
        record.calls, record.tools = recorder.calls, recorder.tools
        return Attempt(env, record, recorder, agents, partners)


async def asked(agent: Agent, role: str) -> Action:
    """The next action of a role that a partner plays.

    Raises:
        PartnerFailure: the partner failed, or its context window is full.
    """
    try:
        return await agent.act()
    except ContextFull as error:
        what = f"role {role}: the conversation is longer than its partner's context window"
        raise PartnerFailure(what, retryable=False) from error
    except PolicyFailure as error:
        raise PartnerFailure(f"role {role}: {error}", retryable=error.retryable) from error


def turn_of(agent: Agent, action: str, result: StepResult, *, partner: bool = False) -> Turn:
    """The record of an agent's action and of the environment's reply.

    Args:
        agent: the agent that acted.
        action: the action's text.
        result: the environment's reply.
        partner: whether a partner played the role. No token of such a turn is recorded.

    Raises:
        EnvFailure: a reward or score is no finite number.
    """
    completion = agent.last
    assert completion is not None
    return Turn(
        action=str(action),
        observation=result.observation,
        finish_reason=BY_PARTNER if partner else completion.finish_reason.value,
        num_tokens=0 if partner else agent.num_sampled,
        unrecorded_tokens=0 if partner else agent.unrecorded_tokens,
        role=agent.segment.role,
        rewards=_numbers("rewards", result.info["rewards"]),
        scores=_numbers("scores", result.info["scores"]),
        tool_calls=[_tool_call(call) for call in result.info["tool_calls"]],
    )


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """An environment's numbers as floats. Anything else makes the episode fail."""
    try:
        numbers = {str(name): float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise EnvFailure(f"{kind} ({values}) must be numbers", retryable=False) from error
    # "not all(... <= ...)" is true for nan.
    if not all(abs(number) <= LARGEST_NUMBER for number in numbers.values()):
        message = f"{kind} ({numbers}) must be finite, and at most {LARGEST_NUMBER:g} in size"
        raise EnvFailure(message, retryable=False)
    return numbers


def _tool_call(call: EnvToolCall) -> EnvToolCall:
    """The call in the form of the record, which must be valid JSON."""
    if not isinstance(call, EnvToolCall):
        raise TypeError(f"tool_calls must hold EnvToolCalls, not {type(call).__name__}")
    seconds = None if call.seconds is None else float(call.seconds)
    retries = min(int(call.retries), int(LARGEST_NUMBER))
    values = (call.name, dict(call.arguments), call.text, call.error, call.cost)
    made = EnvToolCall(*values, seconds, retries, str(call.status)[:_LONGEST_STATUS])
    json.dumps(asdict(made))
    return made
