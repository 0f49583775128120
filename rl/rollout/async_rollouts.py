"""Groups played ahead of the learner, no further than the staleness bound.

With ``staleness=n`` and B groups an update, group number k (from 0) begins when at least
``k // B - n`` updates are done: AReaL's capacity law (Fu et al., arXiv 2505.24298, section 4.1).
An update takes groups that are done, the oldest first. It waits for a slow one only where that
could not be learned from later without being more than n updates old. So nothing is learned from
that is older, and nothing is thrown away.

With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) a group whose returns are all equal
teaches nothing: its place in an update gets another task at once, a bounded number of times.

Episodes go on while weights change; each token knows the version that sampled it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from rl.rollout.trajectory import Trajectory, TrajectoryGroup

Play = Callable[[int, int, int], Awaitable[TrajectoryGroup]]
"""From a place's number, the draw for it counted from 0, and the task drawn, to the group."""


@dataclass(slots=True)
class Ahead:
    """A place in an update, whose group began and was not learned from yet."""

    number: int
    tasks: list[int]
    """Drawn for it; all but the last taught nothing."""
    begun_at: int
    """Updates that were done when it began."""
    played: list[TrajectoryGroup] = field(default_factory=list)
    """The tasks' groups, as far as they are done."""
    done: bool = False


class GroupStream:
    """Plays groups in the background.

    Args:
        play: plays one; its randomness depends on the place's number and the draw alone.
        draw: the next so many tasks.
        finished: told of each task's group when it is done.
        prompts: groups of an update.
        staleness: updates by which a group may be older than those that learn from it.
        max_draws: tasks for one place in an update, where those before teach nothing.
    """

    def __init__(
        self,
        play: Play,
        draw: Callable[[int], list[int]],
        finished: Callable[[int, TrajectoryGroup], None],
        *,
        prompts: int,
        staleness: int,
        max_draws: int = 1,
    ) -> None:
        self._play = play
        self._draw = draw
        self._finished = finished
        self._prompts = prompts
        self._staleness = staleness
        self._max_draws = max_draws
        self._begun = 0
        """Places for which a group began, over the whole run."""
        self._ahead: dict[int, Ahead] = {}
        """Those not learned from, by number; done ones in the order in which they were done."""
        self._lent: list[Ahead] = []
        """Those that the update under way learns from."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._done = asyncio.Event()

    async def take(self, updates: int) -> list[TrajectoryGroup]:
        """The groups of the next update; others go on, and more begin.

        Args:
            updates: how many are done.

        Returns:
            Those of the first draw by their places' numbers, then those of the second, and so on.

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
        draws = zip_longest(*(ahead.played for ahead in self._lent))
        return [group for draw in draws for group in draw if group is not None]

    def learned(self, updates: int) -> None:
        """The groups that were taken are learned from: as many others may begin."""
        self._lent = []
        self._begin(updates)

    @property
    def num_running(self) -> int:
        """Groups that are being played."""
        return len(self._running)

    def state_dict(self) -> dict[str, Any]:
        """Plain values: what began and was not learned from; episodes that are done with it.

        A copy, for what goes on meanwhile does not belong to it.
        """
        ahead = [*self._lent, *self._ahead.values()]
        return {
            "begun": self._begun,
            "ahead": [
                {
                    "number": one.number,
                    "tasks": list(one.tasks),
                    "begun_at": one.begun_at,
                    "played": [
                        [_plain(trajectory) for trajectory in group.trajectories]
                        for group in one.played
                    ],
                    "done": one.done,
                }
                for one in ahead
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], updates: int) -> None:
        """Go on from there: what was running begins again, with the same tasks and seeds."""
        self._begun = state["begun"]
        for one in state["ahead"]:
            played = [
                TrajectoryGroup([Trajectory.from_json(episode) for episode in episodes])
                for episodes in one["played"]
            ]
            # Tokens that are there are as old as they were.
            begun_at = one["begun_at"] if played else updates
            ahead = Ahead(one["number"], one["tasks"], begun_at, played, one["done"])
            self._ahead[ahead.number] = ahead

    async def close(self) -> None:
        """Stop what is running."""
        running = list(self._running.values())
        self._running = {}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, updates: int) -> None:
        for ahead in self._ahead.values():
            if not ahead.done and ahead.number not in self._running:
                self._start(ahead)
        room = (self._staleness + updates + 1) * self._prompts - self._begun
        for task in self._draw(room) if room > 0 else ():
            ahead = Ahead(self._begun, [task], updates)
            self._ahead[ahead.number] = ahead
            self._begun += 1
            self._start(ahead)

    def _start(self, ahead: Ahead) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._done.set()
            if task.cancelled() or task.exception() is not None:
                return
            # One that ends as everything is closed was taken out already.
            if self._running.get(ahead.number) is task:
                del self._running[ahead.number]

        self._running[ahead.number] = task = asyncio.create_task(self._fill(ahead))
        task.add_done_callback(done)

    async def _fill(self, ahead: Ahead) -> None:
        """Play tasks for a place until one teaches something, or the draws are used up."""
        while True:
            draw = len(ahead.played)
            if draw == len(ahead.tasks):
                ahead.tasks += self._draw(1)
            group = await self._play(ahead.number, draw, ahead.tasks[draw])
            self._finished(ahead.tasks[draw], group)
            ahead.played.append(group)
            if not group.is_constant or len(ahead.played) >= self._max_draws:
                break
        # At once: a checkpoint may be written before anybody else hears of it.
        ahead.done = True
        # To the end: the dictionary keeps the order in which groups were done.
        self._ahead[ahead.number] = self._ahead.pop(ahead.number)

    def _raise_failures(self) -> None:
        for task in self._running.values():
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    def _chosen(self, updates: int) -> list[Ahead] | None:
        """The groups of the next update, or None while it has to wait."""
        done = [ahead for ahead in self._ahead.values() if ahead.done]
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


def _plain(trajectory: Trajectory) -> dict[str, Any]:
    """As a file would have it: an environment's text may be of a kind that no checkpoint takes."""
    plain: dict[str, Any] = json.loads(json.dumps(trajectory.to_json()))
    return plain
