"""A collector whose episodes are played by other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rl.collectors.messages import PlaySettings
from rl.collectors.pool import CollectorPool
from rl.rollout.collector import Assignment, Collector
from rl.rollout.context import EpisodeContext
from rl.rollout.trajectory import Trajectory
from rl.rollout.vine import VineConfig


class RemoteCollector(Collector):
    """Lets the collectors of a pool play; see :class:`~rl.rollout.collector.Collector`.

    Results do not depend on which collector plays an episode.
    """

    def __init__(
        self, context: EpisodeContext, vine: VineConfig | None, pool: CollectorPool
    ) -> None:
        super().__init__(context, vine)
        self._pool = pool
        self._settings = PlaySettings(context.options.split, context.sampling, vine)

    async def play(self, assignments: Sequence[Assignment]) -> list[list[Trajectory]]:
        """Play all episodes of all assignments concurrently; see :meth:`Collector.play`."""
        playing = [asyncio.create_task(self._play(assignment)) for assignment in assignments]
        try:
            return await asyncio.gather(*playing)
        finally:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    async def _play(self, assignment: Assignment) -> list[Trajectory]:
        if not assignment.members:
            return []

        def ended(member: int, trajectory: Trajectory) -> None:
            self.context.played(assignment.task, member, trajectory)

        return await self._pool.play(self.context, self._settings, assignment, ended)
