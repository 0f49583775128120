"""Groups played ahead of the learner, no further than the staleness bound.

With ``staleness=n`` and B groups an update, group number k (from 0) begins when at least
``k // B - n`` updates are done: AReaL's capacity law (Fu et al., arXiv 2505.24298, section 4.1).
An update takes groups that are done, the oldest first. It waits for a slow one only where that
could not be learned from later without being more than n updates old. So nothing is learned from
that is older, and nothing is thrown away.

Episodes go on while weights change; each token knows the version that sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rl.rollout.trajectory import Trajectory, TrajectoryGroup

Play = Callable[[int, int], Awaitable[TrajectoryGroup]]
"""From a group's number and its task to the group."""


@dataclass(slots=True)
class Ahead:
    """A group that began and was not learned from yet."""

    number: int
    task: int
    begun_at: int
    """Updates that were done when it began."""
    group: TrajectoryGroup | None = None
    """Once it is done."""


class GroupStream:
    """Plays groups in the background.

    Args:
        play: plays one; its randomness depends on the group's number alone.
        draw: the next so many tasks.
        finished: told of each task's group when it is done.
        prompts: groups of an update.
        staleness: updates by which a group may be older than those that learn from it.
    """

    def __init__(
        self,
        play: Play,
        draw: Callable[[int], list[int]],
        finished: Callable[[int, TrajectoryGroup], None],
        *,
        prompts: int,
        staleness: int,
    ) -> None:
        self._play = play
        self._draw = draw
        self._finished = finished
        self._prompts = prompts
        self._staleness = staleness
        self._begun = 0
        """Groups that began, over the whole run."""
        self._ahead: dict[int, Ahead] = {}
        """Those not learned from, by number; done ones in the order in which they were done."""
        self._lent: list[Ahead] = []
        """Those that the update under way learns from."""
        self._running: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        self._done = asyncio.Event()

    async def take(self, updates: int) -> list[TrajectoryGroup]:
        """The groups of the next update, by number; others go on, and more begin.

        Args:
            updates: how many are done.

        Raises:
            BaseException: what playing a group raised.
        """
        self._begin(updates)
        while True:
            self._raise_failures()
            chosen = self._chosen(updates)
            if chosen is not None:
                break
            self._done.clear()
            await self._done.wait()
        for ahead in chosen:
            del self._ahead[ahead.number]
        self._lent = sorted(chosen, key=lambda ahead: ahead.number)
        return [ahead.group for ahead in self._lent if ahead.group is not None]

    def learned(self, updates: int) -> None:
        """The groups that were taken are learned from: as many others may begin."""
        self._lent = []
        self._begin(updates)

    @property
    def num_running(self) -> int:
        """Groups that are being played."""
        return len(self._running)

    def state_dict(self) -> dict[str, Any]:
        """Plain values: what began and was not learned from; episodes that are done with it."""
        ahead = [*self._lent, *self._ahead.values()]
        return {
            "begun": self._begun,
            "ahead": [
                {
                    "number": one.number,
                    "task": one.task,
                    "episodes": None
                    if one.group is None
                    else [trajectory.to_json() for trajectory in one.group.trajectories],
                }
                for one in ahead
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], updates: int) -> None:
        """Go on from there: what was running begins again, with the same tasks and seeds."""
        self._begun = state["begun"]
        for one in state["ahead"]:
            group = None
            if one["episodes"] is not None:
                group = TrajectoryGroup([Trajectory.from_json(e) for e in one["episodes"]])
            self._ahead[one["number"]] = Ahead(one["number"], one["task"], updates, group)

    async def close(self) -> None:
        """Stop what is running."""
        running = list(self._running.values())
        self._running = {}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, updates: int) -> None:
        for ahead in self._ahead.values():
            if ahead.group is None and ahead.number not in self._running:
                self._start(ahead)
        room = (self._staleness + updates + 1) * self._prompts - self._begun
        for task in self._draw(room) if room > 0 else ():
            ahead = Ahead(self._begun, task, updates)
            self._ahead[ahead.number] = ahead
            self._begun += 1
            self._start(ahead)

    def _start(self, ahead: Ahead) -> None:
        async def play() -> TrajectoryGroup:
            return await self._play(ahead.number, ahead.task)

        def done(task: asyncio.Task[TrajectoryGroup]) -> None:
            self._done.set()
            if task.cancelled() or task.exception() is not None:
                return
            del self._running[ahead.number]
            ahead.group = task.result()
            # To the end: the dictionary keeps the order in which groups were done.
            self._ahead[ahead.number] = self._ahead.pop(ahead.number)
            self._finished(ahead.task, ahead.group)

        self._running[ahead.number] = task = asyncio.create_task(play())
        task.add_done_callback(done)

    def _raise_failures(self) -> None:
        for task in self._running.values():
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    def _chosen(self, updates: int) -> list[Ahead] | None:
        """The groups of the next update, or None while it has to wait."""
        done = [ahead for ahead in self._ahead.values() if ahead.group is not None]
        chosen = sorted(done, key=lambda ahead: ahead.begun_at)[: self._prompts]
        if len(chosen) < self._prompts:
            return None
        for later in range(self._staleness + 1):
            # Whatever began by then must be learned from within `later` more updates.
            by = updates - self._staleness + later
            left = sum(a.begun_at <= by for a in self._ahead.values())
            left -= sum(a.begun_at <= by for a in chosen)
            if left > later * self._prompts:
                return None
        return chosen
