"""What every part of a run does at this moment, since when, and when it last got further.

Whoever does something says so here: an episode that it generates or waits for its environment, the
loop that it learns. The ledger counts the seconds from it, the watchdog and ``rl.status`` read it.
It is written from the event loop and the learner's thread, and read from the watchdog's.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from agents.policy import Busy, Observable
from rl.run.ledger import Lane

ROLLOUT, LEARNER, POLICY, CLOSE = "rollout", "learner", "policy", "close"
"""Lanes; the last is of what is being given back, and has no seconds."""
OPEN = "open"
"""State of what is being made ready before the first step."""
GENERATE, ENVIRONMENT, TOOL, QUEUE = "generate", "environment", "tool", "queue"
"""States of an episode."""
Count = Callable[[str, int, int], None]
"""Told what is counted, how many are done, and how many there are."""
_LANES = {ROLLOUT: (), LEARNER: (), POLICY: ("sync", GENERATE)}


@dataclass(frozen=True, slots=True)
class Waiting:
    """An activity as it is told."""

    lane: str
    name: str
    state: str
    seconds: float
    """In this state."""

    def __str__(self) -> str:
        return f"{self.lane}: {self.name}, {self.state} for {self.seconds:.1f} s"


class Activity:
    """Something under way; made by :meth:`Activities.doing`."""

    __slots__ = ("_all", "_share", "give_up", "lane", "name", "since", "state")

    def __init__(self, everything: Activities, lane: str, name: str, state: str) -> None:
        self._all = everything
        self.lane, self.name, self.state = lane, name, state
        self.since = 0.0
        self._share = 0.0
        self.give_up: Callable[[], None] | None = None
        """Ends what is waited for, to begin it again; called on the event loop."""

    def enter(self, state: str) -> None:
        """It does something else from now on."""
        if state != self.state:
            self._all.change(self, state)

    def was(self, state: str, seconds: float) -> None:
        """Of the seconds since it entered its state, so many were of another one."""
        self._all.correct(self, state, seconds)


class Activities:
    """The activities of one run.

    Args:
        clock: seconds, never going back.
        on_count: told of what is counted, for a bar on the screen.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_count: Count = lambda *_: None
    ) -> None:
        self._clock = clock
        self._on_count = on_count
        self._lock = threading.Lock()
        self._running: dict[int, Activity] = {}
        now = clock()
        self._lanes = {name: Lane(now, order) for name, order in _LANES.items()}
        self._taken_at = now
        self._sources: list[Observable] = []
        self._seen: list[float] = []
        self._progress = (now, "the start")
        self.closed_at = now
        """When something last began or ended to be given back."""

    @contextmanager
    def doing(self, lane: str, name: str, state: str) -> Iterator[Activity]:
        """While the context lasts, ``name`` is under way in ``lane``, at first in ``state``."""
        activity = Activity(self, lane, name, state)
        self._shift(activity, None, state)
        with self._lock:
            self._running[id(activity)] = activity
        try:
            yield activity
        finally:
            with self._lock:
                del self._running[id(activity)]
            self._shift(activity, activity.state, None)

    @contextmanager
    def busy(self, lane: str, state: str) -> Iterator[None]:
        """Count the context's seconds in a lane, without an activity of its own to be told."""
        activity = Activity(self, lane, "", state)
        self._shift(activity, None, state)
        try:
            yield
        finally:
            self._shift(activity, state, None)

    def lane(self, name: str, precedence: Sequence[str]) -> Busy:
        """A lane more, which nothing was done in so far; whoever is busy in it says so.

        Args:
            name: of the lane.
            precedence: as of :class:`~rl.run.ledger.Lane`.
        """
        with self._lock:
            self._lanes[name] = Lane(self._taken_at, precedence)
        return partial(self.busy, name)

    def change(self, activity: Activity, state: str) -> None:
        """See :meth:`Activity.enter`."""
        self._shift(activity, activity.state, state)

    def correct(self, activity: Activity, state: str, seconds: float) -> None:
        """See :meth:`Activity.was`."""
        with self._lock:
            now = self._clock()
            lasted = now - activity.since
            if not lasted > 0:
                return
            lane = self._lanes[activity.lane]
            lane.change(now, None, None)
            own = (lane.share - activity._share) * min(1.0, max(0.0, seconds) / lasted)
            lane.move(activity.state, state, own)

    def progressed(self, what: str) -> None:
        """Something got further: an episode is finished, a micro-batch learned."""
        self._progress = (self._clock(), what)

    def counted(self, what: str, done: int, total: int) -> None:
        """Something got further that is counted: a step of the warm start."""
        self.progressed(what)
        self._on_count(what, done, total)

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """A function that counts one more of ``total`` each time it is called."""
        self._on_count(what, 0, total)
        numbers = itertools.count(1)
        return lambda: self.counted(what, next(numbers), total)

    def watch(self, source: Observable) -> None:
        """Look at what else says how it gets on: a policy that samples tokens."""
        self._seen.append(source.progress())
        self._sources.append(source)  # Last: the watchdog's thread reads it.

    def parts(self) -> dict[str, str]:
        """What the parts of all that is watched do."""
        return {
            name: does
            for source in self._sources
            for name, does in source.component_status().items()
        }

    def last_progress(self) -> tuple[float, str]:
        """How many seconds ago something got further, and what it was."""
        for place, source in enumerate(self._sources):
            number = source.progress()
            if number != self._seen[place]:
                self._seen[place] = number
                self.progressed("the policy")
        at, what = self._progress
        return self._clock() - at, what

    def waits(self) -> list[Waiting]:
        """What is under way, the oldest state first."""
        with self._lock:
            now, running = self._clock(), list(self._running.values())
        told = [Waiting(a.lane, a.name, a.state, now - a.since) for a in running]
        return sorted(told, key=lambda waiting: -waiting.seconds)

    def num_able(self) -> int:
        """How much of what is under way can be begun again."""
        return len(self._able())

    def give_up(self) -> None:
        """Have all of it begin again. On the event loop only."""
        for give_up in self._able():
            give_up()

    def take(self) -> dict[str, float]:
        """Seconds since the last call as ``time/LANE/STATE``, and of all as ``time/wall``.

        Those of each lane add up to ``time/wall``.
        """
        with self._lock:
            now = self._clock()
            passed, self._taken_at = now - self._taken_at, now
            taken = {
                f"time/{name}/{state}": seconds
                for name, lane in self._lanes.items()
                for state, seconds in sorted(lane.take(now).items())
            }
        return {"time/wall": passed, **taken}

    def _able(self) -> list[Callable[[], None]]:
        with self._lock:
            return [a.give_up for a in self._running.values() if a.give_up is not None]

    def _shift(self, activity: Activity, before: str | None, after: str | None) -> None:
        with self._lock:
            now = self._clock()
            lane = self._lanes.get(activity.lane)
            if lane is not None:
                lane.change(now, before, after)
                activity._share = lane.share
            elif activity.lane == CLOSE:
                self.closed_at = now
            activity.since = now
            if after is not None:
                activity.state = after
