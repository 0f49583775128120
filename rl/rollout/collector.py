"""Rollouts: one asyncio task per episode and no barrier between them.

An episode that waits for a tool delays nobody. An infrastructure failure is retried with the same
task and seed; one that stays is recorded, has no reward and enters no baseline.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import envs
from agents.agent import ContextFull, TokenAgent
from agents.completion import SamplingParams
from agents.policy import Policy, PolicyFailure
from agents.renderer import Renderer
from envs.env import EnvOptions, TextEnv
from envs.episode import EnvFailure, StepResult, StopReason
from rl.errors import RunFailure
from rl.rollout.trajectory import ToolCall, Trajectory, TrajectoryGroup, Turn

logger = logging.getLogger(__name__)
T = TypeVar("T")
_NOTHING: dict[str, Any] = {"rewards": {}, "scores": {}, "tool_calls": []}


class RolloutFailure(RunFailure):
    """Raised when so many episodes failed that going on would hide a broken infrastructure."""


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """What an episode may use."""

    context_length: int
    """The model's window, in tokens."""
    episode_tokens: int = 0
    """Sampled tokens over all turns; 0 for no limit but the window."""
    episode_timeout_s: float = 600.0
    """Wall-clock seconds; an episode that takes longer is truncated."""
    retries: int = 2
    """How often an episode is begun again after a retryable failure."""
    max_failed: float = 0.25
    """The largest share of failed episodes that a collection may hold."""


def seed_of(*key: int) -> int:
    """A 63-bit seed that depends on every number of ``key`` and on nothing else."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Collector:
    """Plays episodes of one environment with one policy.

    Args:
        env_id: the environment's full id.
        options: its options.
        services: what its episodes share, opened by the caller (``TextEnv.open_services``).
        policy: whoever samples.
        renderer: turns text into tokens.
        sampling: how completions are sampled.
        limits: what an episode may use.
    """

    def __init__(
        self,
        env_id: str,
        options: EnvOptions,
        services: Mapping[str, Any],
        *,
        policy: Policy,
        renderer: Renderer,
        sampling: SamplingParams,
        limits: EpisodeLimits,
    ) -> None:
        self.env_id = env_id
        self.options = options
        self.services = services
        self.policy = policy
        self.renderer = renderer
        self.sampling = sampling
        self.limits = limits

    async def collect(
        self, tasks: Sequence[int], group_size: int, seed_key: tuple[int, ...]
    ) -> list[TrajectoryGroup]:
        """Play ``group_size`` episodes of each task, all at once.

        Args:
            tasks: indices into the environment's split.
            group_size: members of each group; they start in the same state.
            seed_key: (seed, step) and what else tells this collection from every other. Each
                turn's sampling seed depends on it, the task's position in ``tasks``, the member
                and the turn alone.

        Returns:
            One group per task, in the order of ``tasks``, failed members included.

        Raises:
            RolloutFailure: more than ``limits.max_failed`` of the episodes failed.
        """
        episodes = [
            _Episode(self, task, member, (*seed_key, position))
            for position, task in enumerate(tasks)
            for member in range(group_size)
        ]
        self.policy.begin([episode.session for episode in episodes])
        async with asyncio.TaskGroup() as running:
            played = [running.create_task(episode.play()) for episode in episodes]
        trajectories = [task.result() for task in played]
        self._check_failures(trajectories)
        return [
            TrajectoryGroup(trajectories[start : start + group_size])
            for start in range(0, len(trajectories), group_size)
        ]

    def make_env(self) -> TextEnv[Any, Any]:
        """A fresh environment that shares the collection's services."""
        return envs.make_from(self.env_id, self.options, self.services)

    def _check_failures(self, trajectories: Sequence[Trajectory]) -> None:
        failures = [t.failure for t in trajectories if t.failure is not None]
        if len(failures) > self.limits.max_failed * len(trajectories):
            raise RolloutFailure(
                f"{len(failures)} of {len(trajectories)} episodes failed, more than "
                f"max_failed={self.limits.max_failed:g} allows; the first: {failures[0]}"
            )


class _Episode:
    """One episode from its first attempt to its record."""

    def __init__(
        self, collector: Collector, task: int, member: int, seed_key: tuple[int, ...]
    ) -> None:
        self.collector = collector
        self.task = task
        self.member = member
        self.seed_key = seed_key
        self.env_seed = seed_of(*seed_key)
        self.attempt = 0

    @property
    def session(self) -> str:
        """The name under which the policy knows this attempt."""
        return "/".join(map(str, (*self.seed_key, self.task, self.member, self.attempt)))

    async def play(self) -> Trajectory:
        """Play it, again after each retryable failure, and return its checked record."""
        while True:
            trajectory, retryable = await self._attempt()
            trajectory.check()
            if not retryable or self.attempt >= self.collector.limits.retries:
                return trajectory
            logger.warning("episode %s is begun again: %s", self.session, trajectory.failure)
            self.attempt += 1
            self.collector.policy.begin([self.session])

    async def _attempt(self) -> tuple[Trajectory, bool]:
        """One attempt; the second value says whether its failure may be retried."""
        collector = self.collector
        trajectory = Trajectory(
            env_id=collector.env_id,
            env_options=asdict(collector.options),
            task=self.task,
            seed=self.env_seed,
            member=self.member,
        )
        agent = TokenAgent(
            collector.renderer,
            collector.policy,
            collector.sampling,
            session=self.session,
            context_length=collector.limits.context_length,
            turn_seed=lambda turn: seed_of(*self.seed_key, self.member, turn),
        )
        trajectory.segments.append(agent.segment)
        env = collector.make_env()
        retryable = False
        timer = asyncio.timeout(collector.limits.episode_timeout_s)
        try:
            async with timer:
                await self._run(env, agent, trajectory)
        except TimeoutError:
            if not timer.expired():
                raise  # The policy's own, which breaks its contract: no end of an episode.
            if agent.num_turns > len(trajectory.turns):
                # The time ran out inside the environment: the action counts, its reward is lost.
                lost = StepResult("", 0.0, False, True, _NOTHING)
                trajectory.turns.append(_turn(agent, agent.last_text, lost, 0.0, 0.0))
            _truncate(trajectory, StopReason.TIME_LIMIT)
        except (EnvFailure, PolicyFailure) as failure:
            trajectory.failure = f"{type(failure).__name__}: {failure}"
            retryable = failure.retryable
        finally:
            collector.policy.end(self.session)
            await env.aclose()
        return trajectory, retryable

    async def _run(self, env: TextEnv[Any, Any], agent: TokenAgent, trajectory: Trajectory) -> None:
        budget = self.collector.limits.episode_tokens
        reset = env.areset(seed=self.env_seed, options={"task": self.task})
        observation, _ = await self._guard(env, reset)
        agent.start(observation, env.system_prompt, env.stop)
        while True:
            asked = time.perf_counter()
            try:
                action = await agent.act()
            except ContextFull:
                return _truncate(trajectory, StopReason.CONTEXT_FULL)
            answered = time.perf_counter()
            result = await self._guard(env, env.astep(action))
            env_s = time.perf_counter() - answered
            trajectory.turns.append(_turn(agent, action, result, answered - asked, env_s))
            if result.terminated:
                trajectory.terminated = True
                return None
            if result.truncated:
                return _truncate(trajectory, result.info["stop_reason"])
            if budget and trajectory.num_sampled >= budget:
                return _truncate(trajectory, StopReason.TOKEN_LIMIT)
            agent.observe(result.observation, continues=env.continues)

    async def _guard(self, env: TextEnv[Any, Any], answer: Awaitable[T]) -> T:
        """An author's bug must not stop the other episodes: it is a failure, never a reward."""
        try:
            return await answer
        except EnvFailure:
            raise
        except Exception as error:
            logger.exception("environment %s failed on task %d", env.env_id, self.task)
            where = f"{env.env_id} raised {type(error).__name__}: {error}"
            raise EnvFailure(where, retryable=False) from error


def _truncate(trajectory: Trajectory, reason: StopReason) -> None:
    trajectory.truncated = True
    trajectory.stop_reason = reason.value


def _turn(
    agent: TokenAgent, action: str, result: StepResult, generate_s: float, env_s: float
) -> Turn:
    completion = agent.last
    assert completion is not None
    calls = [
        ToolCall(c.name, dict(c.arguments), c.text, c.error) for c in result.info["tool_calls"]
    ]
    return Turn(
        action=str(action),
        observation=result.observation,
        finish_reason=completion.finish_reason.value,
        num_tokens=len(completion.token_ids),
        rewards=_numbers("rewards", result.info["rewards"]),
        scores=_numbers("scores", result.info["scores"]),
        tool_calls=calls,
        generate_s=generate_s,
        env_s=env_s,
    )


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """An environment's numbers as plain floats; one that is none fails the episode."""
    try:
        numbers = {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise EnvFailure(f"{kind} ({values}) must be numbers", retryable=False) from error
    if not all(map(math.isfinite, numbers.values())):
        raise EnvFailure(f"{kind} ({numbers}) must be finite", retryable=False)
    return numbers
