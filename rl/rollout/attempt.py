"""An episode under way: what it is made of, and how it is copied between two turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agents.agent import TokenAgent
from envs.env import TextEnv
from envs.record import Recorder
from rl.rollout.trajectory import Trajectory


@dataclass(slots=True)
class Attempt:
    """One attempt at an episode; whoever holds it closes its environment."""

    env: TextEnv[Any, Any]
    trajectory: Trajectory
    recorder: Recorder
    """The environment's tool tap; it writes into the trajectory."""
    agents: dict[str, TokenAgent] = field(default_factory=dict)
    """By role, in the order of their first words."""

    async def fork(self, record: Trajectory, reseed: int | None = None) -> Attempt:
        """A second one in the same state, written down in ``record``; this one stays as it is.

        Args:
            record: what has happened so far is copied into it.
            reseed: gives the copy of the environment another future.

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
