"""One attempt at an episode. It can be copied between two turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agents.agent import Agent
from envs.env import TextEnv
from envs.record import Recorder
from rl.rollout.trajectory import Trajectory


@dataclass(slots=True)
class Attempt:
    """One attempt at an episode. The caller closes its environment."""

    env: TextEnv[Any, Any]
    trajectory: Trajectory
    recorder: Recorder
    """Records the environment's tool calls in the trajectory."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents by role, in the order of their first turns."""

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
        record.segments = [agent.segment for agent in agents.values()]
        record.turns = [*self.trajectory.turns]
        record.calls, record.tools = recorder.calls, recorder.tools
        return Attempt(env, record, recorder, agents)
