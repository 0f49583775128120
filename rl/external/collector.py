"""Rollouts of agents with a loop of their own: the program plays, the endpoint records.

Everything else is as for environments: groups that start with the same task and seed, episodes
begun again after a failure, deadlines, and trajectories that are checked before they are trained.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cached_property
from itertools import pairwise

import envs
from agents.capture import Capture, CapturedEpisode, CapturedTurn, CaptureLimits, CaptureServer
from agents.capture.errors import ApiError
from agents.policy import PolicyFailure
from envs.episode import EnvFailure, StopReason
from rl.external.env import AgentEnv, AgentOptions
from rl.external.program import Program
from rl.rollout.collector import Collector
from rl.rollout.episode import Episode, EpisodeTimeout
from rl.rollout.trajectory import ToolCall, Trajectory, Turn
from rl.run.monitoring.activity import ENVIRONMENT, QUEUE


class ExternalCollector(Collector):
    """Plays episodes of ``agent-v0`` with one policy."""

    def _episode(self, task: int, member: int, seed_key: tuple[int, ...]) -> Episode:
        return ExternalEpisode(self, task, member, seed_key)

    @cached_property
    def own(self) -> AgentOptions:
        """The options, whose type is known."""
        assert isinstance(self.options, AgentOptions)
        return self.options

    @cached_property
    def env(self) -> AgentEnv:
        """What holds the tasks."""
        env = self.make_env()
        assert isinstance(env, AgentEnv)
        return env

    @cached_property
    def places(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Where episodes wait for others to end."""
        count = self.own.concurrency
        return asyncio.Semaphore(count) if count else contextlib.nullcontext()

    @property
    def program(self) -> Program:
        """The user's loop."""
        program: Program = self.services["program"]
        return program

    @property
    def server(self) -> CaptureServer:
        """The endpoint."""
        server: CaptureServer = self.services["capture"]
        return server


def collector_type(env_id: str) -> type[Collector]:
    """Whoever plays episodes of an environment."""
    played_outside = issubclass(envs.env_type(env_id), AgentEnv)
    return ExternalCollector if played_outside else Collector


class ExternalEpisode(Episode):
    """One episode of the user's program: a task, a member of its group, and the seeds of both."""

    collector: ExternalCollector

    async def _failure_of(
        self, trajectory: Trajectory
    ) -> EnvFailure | PolicyFailure | EpisodeTimeout | None:
        """Play one attempt into ``trajectory``; what went wrong, or None."""
        collector, limits = self.collector, self.collector.limits
        captured = CapturedEpisode(
            collector.renderer,
            collector.policy,
            collector.sampling,
            session=self.session,
            limits=CaptureLimits(
                context_length=limits.context_length,
                max_turns=collector.own.max_turns,
                episode_tokens=limits.episode_tokens,
                # The episode's own deadline comes first.
                completion_timeout_s=limits.episode_timeout_s,
                at_once=limits.requests_at_once,
            ),
            turn_seed=self._turn_seed,
        )
        captured.asking = self._generating
        failure: EnvFailure | EpisodeTimeout | None = None
        self._activity.enter(QUEUE)
        async with collector.places, self._served(captured, trajectory) as base_url:
            self._activity.enter(ENVIRONMENT)
            try:
                async with self._in_time():
                    await self._play_program(captured, base_url)
            except (EnvFailure, EpisodeTimeout) as raised:
                failure = raised
        return self._outcome(captured, trajectory, failure)

    def _waited_for(self) -> str:
        program = self._activity.state == ENVIRONMENT
        return "the agent's program" if program else super()._waited_for()

    @contextlib.asynccontextmanager
    async def _served(
        self, captured: CapturedEpisode, trajectory: Trajectory
    ) -> AsyncIterator[str]:
        """Serve the episode while the body lasts, then write down what was recorded."""
        base_url = self.collector.server.open(captured)
        try:
            yield base_url
        finally:
            write_down(await self.collector.server.close(base_url), trajectory)

    async def _play_program(self, captured: CapturedEpisode, base_url: str) -> None:
        task = self.collector.env.tasks[self.task]
        returned = await self.collector.program.play(task, base_url, self.env_seed)
        if returned is None:
            return
        try:
            captured.settle({"reward": float(returned)}, {})
        except ApiError as error:
            what = f"the reward that was returned ({returned:g}) is not taken: {error}"
            raise EnvFailure(what, retryable=False) from error

    def _outcome(
        self,
        captured: CapturedEpisode,
        trajectory: Trajectory,
        failure: EnvFailure | EpisodeTimeout | None,
    ) -> EnvFailure | PolicyFailure | EpisodeTimeout | None:
        """How the episode ended, written down; or why it failed."""
        if captured.failure is not None:
            return captured.failure
        if isinstance(failure, EpisodeTimeout):
            return failure
        cut = captured.limit
        # An agent that is told that its context is full may well give up with an error.
        if failure is not None and not (cut and captured.rewards is None):
            return failure
        if captured.rewards is None and not cut:
            return EnvFailure("the agent's program ended without a reward", retryable=True)
        if not trajectory.turns and not cut:
            return EnvFailure("there is a reward, and nothing was asked for it", retryable=True)
        if cut:
            trajectory.truncated, trajectory.stop_reason = True, StopReason(cut.value).value
        else:
            trajectory.terminated = True
        if trajectory.turns:
            trajectory.turns[-1].rewards = captured.rewards or {}
            trajectory.turns[-1].scores = captured.scores
        return None


def write_down(capture: Capture, trajectory: Trajectory) -> None:
    """The conversations of an episode as the segments and turns of its trajectory.

    What a turn led to is what the next one read. Conversations that overlap in time stand one
    after the other, in the order in which they began; the reward is earned at the last turn.
    """
    trajectory.segments = capture.segments
    trajectory.system = capture.system
    trajectory.turns = [_turn(turn) for turn in capture.turns]
    if capture.turns:
        trajectory.observation = capture.turns[0].read
    for place, following in enumerate(capture.turns[1:]):
        trajectory.turns[place].observation = following.read
    in_time = sorted(range(len(capture.turns)), key=lambda i: capture.turns[i].answered_at)
    for before, after in pairwise(in_time):
        waited = capture.turns[after].asked_at - capture.turns[before].answered_at
        trajectory.turns[before].env_s = max(0.0, waited)


def _turn(turn: CapturedTurn) -> Turn:
    return Turn(
        action=turn.said,
        observation="",
        finish_reason=turn.completion.finish_reason.value,
        num_tokens=len(turn.completion.token_ids),
        tool_calls=[
            ToolCall(call.name, dict(call.arguments), call.result or "") for call in turn.calls
        ],
        generate_s=turn.answered_at - turn.asked_at,
    )
