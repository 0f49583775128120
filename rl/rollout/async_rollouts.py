"""Asynchronous rollouts: groups are played ahead of the learner, within the staleness bound.

With ``staleness=n`` and B groups per update, group number k (from 0) starts when at least ``k // B
- n`` updates are done. This is AReaL's capacity law (Fu et al., arXiv 2505.24298, section 4.1). An
update takes finished groups, oldest first. It waits for a slow group only if the group would be
more than n updates old in any later update. Therefore no update uses older groups, and no group is
discarded.

With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), a group whose returns are all equal is
immediately replaced by a group of another task, at most ``max_draws - 1`` times.

Episodes continue while weights change. Each token records the version that sampled it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch

from rl.rollout.token_table import from_table, to_table
from rl.rollout.trajectory import Trajectory, TrajectoryGroup

Play = Callable[[int, int, int], Awaitable[TrajectoryGroup]]
"""Function that plays a group, called with the slot's number, the index of the draw, and the
task."""


@dataclass(slots=True)
class Slot:
    """A place in a future update, and the groups that were played for it."""

    number: int
    tasks: list[int]
    """Tasks drawn for the slot. A task was replaced by the next one if its group's returns were
    equal."""
    begun_at: int
    """Number of updates that were done when the slot started."""
    played: list[TrajectoryGroup] = field(default_factory=list)
    """The finished groups of the tasks."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The slots of a :class:`GroupStream` at one time."""

    begun: int
    slots: list[Slot]

    def state_dict(self) -> dict[str, Any]:
        """The snapshot as plain values and tensors, for a checkpoint.

        Call this in a thread, because the conversion of long episodes takes time.
        """
        groups = [group for slot in self.slots for group in slot.played]
        records, tokens = to_table([t for group in groups for t in group.trajectories])
        # JSON makes plain values: an environment's text may be a subclass of str.
        # One record at a time, as a call of json lets no other thread run.
        plain = iter([json.loads(json.dumps(record)) for record in records])
        return {
            "begun": self.begun,
            "tokens": {name: torch.from_numpy(column) for name, column in tokens.items()},
            "ahead": [
                {
                    "number": slot.number,
                    "tasks": slot.tasks,
                    "begun_at": slot.begun_at,
                    "played": [[next(plain) for _ in g.trajectories] for g in slot.played],
                    "done": slot.done,
                }
                for slot in self.slots
            ],
        }


class GroupStream:
    """Plays groups in the background.

    Args:
        play: plays a group. Its randomness depends only on the slot's number and the draw.
        draw: returns the next tasks; its argument is their number.
        finished: called with each task and its finished group.
        prompts: groups per update.
        staleness: largest age of a group, in updates.
        max_draws: largest number of tasks for one slot.
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
        """Number of slots that were started in the whole run."""
        self._slots: dict[int, Slot] = {}
        """Slots that no update has taken, by number. Finished slots are in the order of their
        ends."""
        self._taken: list[Slot] = []
        """Slots that the current update has taken."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._done = asyncio.Event()

    async def take(self, updates: int) -> list[TrajectoryGroup]:
        """Wait for the groups of the next update, while other groups continue and new groups start.

        Args:
            updates: number of updates done.

        Returns:
            The groups of the first draw in the order of their slots, then the groups of the second
            draw, and so on.

        Raises:
            BaseException: playing a group raised this exception.
        """
        self._begin(updates)
        while True:
            self._raise_failures()
            chosen = self._chosen(updates)
            if chosen is not None:
                break
            self._done.clear()
            await self._done.wait()
        for slot in chosen:
            del self._slots[slot.number]
        self._taken = sorted(chosen, key=lambda slot: slot.number)
        draws = zip_longest(*(slot.played for slot in self._taken))
        return [group for draw in draws for group in draw if group is not None]

    def learned(self, updates: int) -> None:
        """Record that the update is done, and start the slots that ``staleness`` now allows."""
        self._taken = []
        self._begin(updates)

    @property
    def num_running(self) -> int:
        """Number of slots in progress."""
        return len(self._running)

    def snapshot(self) -> Snapshot:
        """A copy of the slots from which no finished update has learned.

        Slots that end later do not change the copy.
        """
        slots = [*self._taken, *self._slots.values()]
        return Snapshot(
            self._begun,
            [replace(slot, tasks=[*slot.tasks], played=[*slot.played]) for slot in slots],
        )

    def load_state_dict(self, state: Mapping[str, Any], updates: int) -> None:
        """Restore a snapshot's slots. Unfinished groups restart with the same tasks and seeds."""
        self._begun = state["begun"]
        played_of = iter(_played(state))
        for one in state["ahead"]:
            played = [
                TrajectoryGroup([next(played_of) for _ in episodes]) for episodes in one["played"]
            ]
            # Recorded tokens keep their age.
            begun_at = one["begun_at"] if played else updates
            slot = Slot(one["number"], one["tasks"], begun_at, played, one["done"])
            self._slots[slot.number] = slot

    async def close(self) -> None:
        """Cancel all running groups."""
        running = list(self._running.values())
        self._running = {}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, updates: int) -> None:
        for slot in self._slots.values():
            if not slot.done and slot.number not in self._running:
                self._start(slot)
        room = (self._staleness + updates + 1) * self._prompts - self._begun
        for task in self._draw(room) if room > 0 else ():
            slot = Slot(self._begun, [task], updates)
            self._slots[slot.number] = slot
            self._begun += 1
            self._start(slot)

    def _start(self, slot: Slot) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._done.set()
            if task.cancelled() or task.exception() is not None:
                return
            # close() has already removed the task.
            if self._running.get(slot.number) is task:
                del self._running[slot.number]

        self._running[slot.number] = task = asyncio.create_task(self._fill(slot))
        task.add_done_callback(done)

    async def _fill(self, slot: Slot) -> None:
        """Play tasks for a slot until a group's returns differ or ``max_draws`` is reached."""
        while True:
            draw = len(slot.played)
            if draw == len(slot.tasks):
                slot.tasks += self._draw(1)
            group = await self._play(slot.number, draw, slot.tasks[draw])
            self._finished(slot.tasks[draw], group)
            slot.played.append(group)
            if not group.is_constant or len(slot.played) >= self._max_draws:
                break
        # Set before the task ends: a checkpoint may be written in between.
        slot.done = True
        # Move to the end: the dictionary keeps the order in which slots finished.
        self._slots[slot.number] = self._slots.pop(slot.number)

    def _raise_failures(self) -> None:
        for task in self._running.values():
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    def _chosen(self, updates: int) -> list[Slot] | None:
        """The slots of the next update, or None if the update must wait."""
        done = [slot for slot in self._slots.values() if slot.done]
        chosen = sorted(done, key=lambda slot: slot.begun_at)[: self._prompts]
        if len(chosen) < self._prompts:
            return None
        for later in range(self._staleness + 1):
            # Slots started up to `by` must enter an update within `later` more updates.
            by = updates - self._staleness + later
            left = sum(a.begun_at <= by for a in self._slots.values())
            left -= sum(a.begun_at <= by for a in chosen)
            if left > later * self._prompts:
                return None
        return chosen


def _played(state: Mapping[str, Any]) -> list[Trajectory]:
    """The episodes in a state, also if an earlier version wrote the tokens into the records."""
    records = [record for one in state["ahead"] for group in one["played"] for record in group]
    if "tokens" not in state:
        return [Trajectory.from_json(record) for record in records]
    return from_table(records, {name: x.numpy() for name, x in state["tokens"].items()})
