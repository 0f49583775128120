"""The collector: plays episodes concurrently and returns them in groups.

A slow episode delays no other. An infrastructure failure is retried with the same task and seed. A
failed episode stays in its group without a reward, and counts in no baseline.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from envs.env import TextEnv
from rl.errors import RunFailure
from rl.rollout.context import EpisodeContext
from rl.rollout.episode import Episode, play_episodes
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.rollout.vine import VineConfig, value_turns

_OF_TOOL = re.compile(r"(tool '[^']*') failed: (\w+): ")
NOTHING_PLAYED: Mapping[tuple[int, int], Trajectory] = MappingProxyType({})


class RolloutFailure(RunFailure):
    """Raised when too many episodes of a collection failed, or no episode had a turn."""


class KeptEpisodes(Protocol):
    """Episodes that an interrupted evaluation has played, and the place for new ones."""

    @property
    def played(self) -> Mapping[tuple[int, int], Trajectory]:
        """The episodes by task and member."""
        ...

    def add(self, task: int, member: int, trajectory: Trajectory) -> None:
        """Keep a new episode."""
        ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """Episodes of one task's group, which are played together."""

    task: int
    """Index into the environment's split."""
    members: tuple[int, ...]
    """Which members of the group."""
    seed_key: tuple[int, ...]
    """Determines the seeds, with each member's number."""


class Collector:
    """Plays episodes of one environment with one policy.

    Args:
        context: environment, policy, limits and reports that all episodes share.
        vine: settings of the Monte Carlo values of turns, or None if turns need no values.
    """

    def __init__(self, context: EpisodeContext, vine: VineConfig | None = None) -> None:
        self.context = context
        self.vine = vine

    async def collect(
        self,
        tasks: Sequence[int],
        group_size: int,
        seed_key: tuple[int, ...],
        played: Mapping[tuple[int, int], Trajectory] = NOTHING_PLAYED,
    ) -> list[TrajectoryGroup]:
        """Play ``group_size`` episodes of each task, all concurrently.

        Args:
            tasks: indices into the environment's split.
            group_size: number of members of each group, which all start in the same state.
            seed_key: (seed, step, ...), different for each collection of a run. The sampling seed
                of a turn depends only on this key, the task's position in ``tasks``, the member and
                the turn.
            played: episodes by task and member that are in the result and are not played again.

        Returns:
            One group per task, in the order of ``tasks``, including failed members.

        Raises:
            RolloutFailure: more than ``limits.max_failed`` of the episodes failed, or no episode
                had a turn.
        """
        members = range(group_size)
        missing = [
            Assignment(
                task, tuple(m for m in members if (task, m) not in played), (*seed_key, position)
            )
            for position, task in enumerate(tasks)
        ]
        made = zip(tasks, map(iter, await self.play(missing)), strict=True)
        groups = [
            [played[task, m] if (task, m) in played else next(new) for m in members]
            for task, new in made
        ]
        self.check([trajectory for group in groups for trajectory in group])
        return list(map(TrajectoryGroup, groups))

    async def play_first(
        self,
        num_tasks: int,
        group_size: int,
        seed_key: tuple[int, ...],
        kept: KeptEpisodes | None = None,
    ) -> list[TrajectoryGroup]:
        """Play the first ``num_tasks`` tasks of the split, and count the episodes on the screen.

        Episodes in ``kept`` are not played again, and ``kept`` receives each new episode. The
        result is the same as without ``kept``; see :meth:`collect`.
        """
        context = self.context
        tasks = range(min(num_tasks, len(self.make_env().tasks)))
        wanted = {(task, member) for task in tasks for member in range(group_size)}
        played = {} if kept is None else {k: t for k, t in kept.played.items() if k in wanted}
        missing = len(wanted) - len(played)
        context.on_episode = context.activities.counter(
            f"{context.options.split} episodes", missing
        )
        if kept is not None:
            context.on_played = kept.add
        return await self.collect(tasks, group_size, seed_key, played)

    async def collect_group(
        self, task: int, group_size: int, seed_key: tuple[int, ...]
    ) -> TrajectoryGroup:
        """Play one group in the same way as :meth:`collect`.

        Args:
            task: index into the environment's split.
            group_size: number of members.
            seed_key: the collection's key, followed by the task's position.

        Returns:
            The group, including failed members. The caller must call :meth:`check` for its groups.
        """
        (trajectories,) = await self.play([Assignment(task, tuple(range(group_size)), seed_key)])
        return TrajectoryGroup(trajectories)

    async def play(self, assignments: Sequence[Assignment]) -> list[list[Trajectory]]:
        """Play all episodes of all assignments concurrently.

        Returns:
            The episodes of each assignment, in the order of its members.
        """
        episodes = [self._episode(a.task, m, a.seed_key) for a in assignments for m in a.members]
        played = iter(await self._play_valued(episodes))
        return [[next(played) for _ in a.members] for a in assignments]

    def _episode(self, task: int, member: int, seed_key: tuple[int, ...]) -> Episode:
        keeps_starts = self.vine is not None
        return Episode(self.context, task, member, seed_key, keeps_starts=keeps_starts)

    async def _play_valued(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """Play episodes, then value their turns if ``vine`` is set."""
        try:
            trajectories = await play_episodes(self.context, episodes)
            if self.vine is not None:
                await value_turns(self.context, self.vine, episodes, trajectories)
        finally:
            for episode in episodes:
                await episode.close_starts()
        return trajectories

    def make_env(self) -> TextEnv[Any, Any]:
        """A new environment that shares the collection's services."""
        return self.context.make_env()

    def check(self, trajectories: Sequence[Trajectory]) -> None:
        """Check that not too many episodes of a collection failed.

        Raises:
            RolloutFailure: see :meth:`collect`.
        """
        limits = self.context.limits
        failures = [t.failure for t in trajectories if t.failure is not None]
        if len(failures) > limits.max_failed * len(trajectories):
            raise RolloutFailure(
                f"{len(failures)} of {len(trajectories)} episodes failed, more than "
                f"max_failed={limits.max_failed:g} allows; {_kinds(failures)}; the first: "
                f"{failures[0]}"
            )
        finished = [t for t in trajectories if t.failure is None]
        if finished and not any(t.turns for t in finished):
            shortest = min(len(t.segments[0]) for t in finished)
            raise RolloutFailure(
                f"no episode got as far as its first turn: the shortest prompt has {shortest} "
                f"tokens, and context_length is {limits.context_length}"
            )


def _kinds(failures: Sequence[str]) -> str:
    """The number of failures of each kind, by tool and type of the exception where a tool failed.

    As in "12 of tool 'convert' (ValueError), 2 EpisodeTimeout".
    """
    kinds = Counter[str]()
    for failure in failures:
        tool = _OF_TOOL.search(failure)
        kinds[f"of {tool[1]} ({tool[2]})" if tool else failure.partition(":")[0]] += 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
