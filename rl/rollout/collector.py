"""Rollouts: one asyncio task per episode and no barrier between them.

An episode that waits for a tool delays nobody. An infrastructure failure is retried with the same
task and seed; one that stays is recorded, has no reward and enters no baseline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import envs
from agents.completion import SamplingParams
from agents.policy import Policy
from agents.renderer import Renderer
from envs.env import EnvOptions, TextEnv
from rl.errors import RunFailure
from rl.rollout.episode import Episode
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.rollout.vine import VineConfig, value_turns
from rl.run.monitoring.activity import Activities


class RolloutFailure(RunFailure):
    """Raised when going on would hide something broken: too many failures, or no turn at all."""


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """What an episode may use."""

    context_length: int
    """The model's window, in tokens."""
    episode_tokens: int = 0
    """Sampled tokens over all turns; 0 for no limit but the window."""
    episode_timeout_s: float = 3600.0
    """Wall-clock seconds of an attempt, without those in which the policy had no room for it; one
    that takes longer has failed, and is begun again."""
    retries: int = 2
    """How often an episode is begun again after a retryable failure."""
    max_failed: float = 0.25
    """The largest share of failed episodes that a collection may hold."""
    requests_at_once: int = 0
    """Requests of an episode that are with the policy at once, where an agent asks in parallel; 0:
    any number."""


@runtime_checkable
class Queueing(Protocol):
    """A service in front of which callers wait for their turn."""

    async def ready(self) -> None:
        """Return when not too many wait."""
        ...


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
        vine: how the turns of collected episodes are valued; None: they are not.
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
        vine: VineConfig | None = None,
    ) -> None:
        self.env_id = env_id
        self.options = options
        self.services = services
        self.policy = policy
        self.renderer = renderer
        self.sampling = sampling
        self.limits = limits
        self.vine = vine
        self.activities = Activities()
        """Where its episodes say what they do; a run puts its own here."""
        self.on_episode: Callable[[], None] = lambda: None
        """Called as each episode ends."""
        self._queueing = [s for s in services.values() if isinstance(s, Queueing)]

    async def services_ready(self) -> None:
        """Wait while a service has more callers than it should: a turn now would only add one."""
        for service in self._queueing:
            await service.ready()

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
            RolloutFailure: more than ``limits.max_failed`` of the episodes failed, or no episode
                got as far as its first turn.
        """
        trajectories = await self._play_valued(
            [
                self._episode(task, member, (*seed_key, position))
                for position, task in enumerate(tasks)
                for member in range(group_size)
            ]
        )
        self.check(trajectories)
        return [
            TrajectoryGroup(trajectories[start : start + group_size])
            for start in range(0, len(trajectories), group_size)
        ]

    async def collect_group(
        self, task: int, group_size: int, seed_key: tuple[int, ...]
    ) -> TrajectoryGroup:
        """Play one group, as :meth:`collect` plays each of its own.

        Args:
            task: index into the environment's split.
            group_size: its members.
            seed_key: that of the collection, and the task's position in it.

        Returns:
            The group, failed members included: whoever gathers groups calls :meth:`check`.
        """
        members = [self._episode(task, member, seed_key) for member in range(group_size)]
        return TrajectoryGroup(await self._play_valued(members))

    async def play(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """Play episodes, all at once; their records, in the same order."""
        self.policy.begin([episode.session for episode in episodes])
        async with asyncio.TaskGroup() as running:
            played = [running.create_task(episode.play()) for episode in episodes]
        return [task.result() for task in played]

    def _episode(self, task: int, member: int, seed_key: tuple[int, ...]) -> Episode:
        return Episode(self, task, member, seed_key, keeps_starts=self.vine is not None)

    async def _play_valued(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """Play episodes, and value their turns if asked."""
        try:
            trajectories = await self.play(episodes)
            if self.vine is not None:
                await value_turns(self, self.vine, episodes, trajectories)
        finally:
            for episode in episodes:
                await episode.close_starts()
        return trajectories

    def make_env(self) -> TextEnv[Any, Any]:
        """A fresh environment that shares the collection's services."""
        return envs.make_from(self.env_id, self.options, self.services)

    def check(self, trajectories: Sequence[Trajectory]) -> None:
        """Refuse to go on with a collection in which too much failed.

        Raises:
            RolloutFailure: as :meth:`collect`.
        """
        failures = [t.failure for t in trajectories if t.failure is not None]
        if len(failures) > self.limits.max_failed * len(trajectories):
            raise RolloutFailure(
                f"{len(failures)} of {len(trajectories)} episodes failed, more than "
                f"max_failed={self.limits.max_failed:g} allows; the first: {failures[0]}"
            )
        finished = [t for t in trajectories if t.failure is None]
        if finished and not any(t.turns for t in finished):
            shortest = min(len(t.segments[0]) for t in finished)
            raise RolloutFailure(
                f"no episode got as far as its first turn: the shortest prompt has {shortest} "
                f"tokens, and context_length is {self.limits.context_length}"
            )
