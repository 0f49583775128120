"""Rollouts of ``env=agent``: a user's program plays each episode, and an endpoint records it.

Groups, retries, deadlines and the checks of trajectories are the same as for environments.
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
from envs.episode import EnvFailure, EnvToolCall, StopReason
from rl.external.env import AgentEnv, AgentOptions
from rl.external.program import Program
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext
from rl.rollout.episode import Episode, EpisodeTimeout, outcome_of
from rl.rollout.trajectory import Trajectory, Turn
from rl.rollout.vine import VineConfig
from rl.run.process.activity import ENVIRONMENT, QUEUE


def make_collector(context: EpisodeContext, vine: VineConfig | None = None) -> Collector:
    """Make the collector for the environment of ``context``."""
    external = issubclass(envs.env_type(context.env_id), AgentEnv)
    return ExternalCollector(context, vine) if external else Collector(context, vine)


class ExternalCollector(Collector):
    """Plays episodes of ``agent-v0`` with one policy."""

    def _episode(self, task: int, member: int, seed_key: tuple[int, ...]) -> Episode:
        return ExternalEpisode(self._host, task, member, seed_key)

    @cached_property
    def _host(self) -> ProgramHost:
        return ProgramHost(self.context)


class ProgramHost:
    """The program, the endpoint and the tasks, which all episodes of the user's program share.

    Args:
        context: the context of a collection of ``agent-v0``.
    """

    def __init__(self, context: EpisodeContext) -> None:
        assert isinstance(context.options, AgentOptions)
        env = context.make_env()
        assert isinstance(env, AgentEnv)
        self.context = context
        self.options = context.options
        self.env = env
        self.program: Program = context.services["program"]
        self.server: CaptureServer = context.services["capture"]
        count = self.options.concurrency
        self.permits: contextlib.AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(count) if count else contextlib.nullcontext()
        )
        """Limits the number of concurrent episodes."""


class ExternalEpisode(Episode):
    """One episode of the user's program.

    Args:
        host: the program, the endpoint and the tasks.
        task: index of the task in the split.
        member: index of the episode in its group.
        seed_key: numbers from which the episode's seeds are derived, as in :class:`Episode`.
    """

    def __init__(
        self, host: ProgramHost, task: int, member: int, seed_key: tuple[int, ...]
    ) -> None:
        super().__init__(host.context, task, member, seed_key)
        self.host = host

    async def _failure_of(
        self, trajectory: Trajectory
    ) -> EnvFailure | PolicyFailure | EpisodeTimeout | None:
        """Record one attempt in ``trajectory``, and return its failure or None."""
        context, limits = self.context, self.context.limits
        captured = CapturedEpisode(
            context.renderer,
            context.policy,
            context.sampling,
            session=self.session,
            limits=CaptureLimits(
                context_length=limits.context_length,
                max_turns=self.host.options.max_turns,
                episode_tokens=limits.episode_tokens,
                # The deadline of the episode ends earlier.
                completion_timeout_s=limits.episode_timeout_s,
                at_once=limits.requests_at_once,
            ),
            turn_seed=self._turn_seed,
        )
        captured.asking = self._generating
        failure: EnvFailure | EpisodeTimeout | None = None
        self._activity.enter(QUEUE)
        async with self.host.permits, self._served(captured, trajectory) as base_url:
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
        """Serve the episode while the context lasts, then copy the capture into the trajectory."""
        base_url = self.host.server.open(captured)
        try:
            yield base_url
        finally:
            record_capture(await self.host.server.close(base_url), trajectory)

    async def _play_program(self, captured: CapturedEpisode, base_url: str) -> None:
        task = self.host.env.tasks[self.task]
        returned = await self.host.program.play(task, base_url, self.env_seed)
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
        """Record how the episode ended, and return its failure or None."""
        if captured.failure is not None:
            return captured.failure
        if isinstance(failure, EpisodeTimeout):
            return failure
        cut = captured.limit
        # A full context may make the agent raise: that is a truncation, unless it posted a reward.
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
        trajectory.outcome = outcome_of(trajectory, self.host.env)
        return None


def record_capture(capture: Capture, trajectory: Trajectory) -> None:
    """Copy captured conversations into the segments and turns of a trajectory.

    The observation after a turn is the text that the next turn read. Conversations that overlap in
    time are ordered by their starts. The last turn receives the reward.
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
            EnvToolCall(call.name, dict(call.arguments), call.result or "") for call in turn.calls
        ],
        generate_s=turn.answered_at - turn.asked_at,
    )
