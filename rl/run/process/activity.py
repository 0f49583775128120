"""The current activities of a run, each with its state and start, and the run's last progress.

Each component reports its own activities: an episode that generates or waits for its environment,
or the loop that learns. The ledger counts their seconds; the watchdog and ``rl.status`` show them.
The event loop and the learner's thread write here, and the watchdog's thread reads.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agents.policy import Busy, Observable
from rl.run.process.ledger import Lane

ROLLOUT, LEARNER, POLICY, CLOSE = "rollout", "learner", "policy", "close"
"""Lanes: the parts of a run whose seconds are counted separately. ``CLOSE`` lists components that
are being closed; its seconds are not counted."""
OPEN = "open"
"""State of components that are being opened before the first step."""
GENERATE, ENVIRONMENT, TOOL, QUEUE = "generate", "environment", "tool", "queue"
PARTNER = "partner"
"""States of an episode. In the last one, it waits for another model that plays a role."""
HELD = "held"
"""State of the policy while an environment's code holds the event loop, and its answers wait."""
Count = Callable[[str, int, int], None]
"""Progress callback: a name, the number done, and the total."""
_LANES = {ROLLOUT: (), LEARNER: (), POLICY: ("sync", GENERATE)}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Snapshot of one running activity."""

    lane: str
    name: str
    state: str
    seconds: float
    """Seconds in this state."""

    def __str__(self) -> str:
        return f"{self.lane}: {self.name}, {self.state} for {self.seconds:.1f} s"


class Activity:
    """A running activity; created by :meth:`Activities.doing`."""

    __slots__ = ("_all", "_share", "give_up", "held_s", "lane", "name", "since", "state")

    def __init__(self, everything: Activities, lane: str, name: str, state: str) -> None:
        self._all = everything
        self.lane, self.name, self.state = lane, name, state
        self.since = 0.0
        self._share = 0.0
        self.held_s = 0.0
        """Seconds for which its code held the event loop."""
        self.give_up: Callable[[], None] | None = None
        """Cancels the current attempt, so that it restarts. Called on the event loop. None if the
        activity cannot restart."""

    def enter(self, state: str) -> None:
        """Change the state."""
        if state != self.state:
            self._all.change(self, state)

    def was(self, state: str, seconds: float) -> None:
        """Move ``seconds`` of the time since the last change of state to ``state``."""
        self._all.correct(self, state, seconds)

    def held(self, seconds: float) -> None:
        """Count the last seconds for this activity alone: its code held the event loop."""
        self._all.count_held(self, seconds)


class ActivitiesElsewhere(Protocol):
    """The activities of a run's other processes. Other threads may call the methods."""

    def add_seconds(self, own: Mapping[str, float]) -> dict[str, float]:
        """Seconds by lane and state, with those of the other processes since the last call."""
        ...

    def waits(self) -> list[Waiting]:
        """The running activities, as far as known."""
        ...

    def num_restartable(self) -> int:
        """Number of running activities that can restart."""
        ...

    def restart_all(self) -> None:
        """Restart all activities that can restart. Called on the event loop only."""
        ...


class Activities:
    """The activities of one run.

    Args:
        clock: returns monotonic seconds.
        on_count: called with counts, for a progress bar.
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
        self.elsewhere: ActivitiesElsewhere | None = None
        """The activities of other processes, if there are some."""
        self.held_s = 0.0
        """Seconds for which the code of an activity held the event loop, outside of the policy."""
        self.closed_at = now
        """Time of the last start or end of an activity in ``CLOSE``."""

    @contextmanager
    def doing(self, lane: str, name: str, state: str) -> Iterator[Activity]:
        """Run an activity in ``lane`` while the context lasts, at first in ``state``."""
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
        """Count the seconds of the context in ``lane``, without a listed activity."""
        activity = Activity(self, lane, "", state)
        self._shift(activity, None, state)
        try:
            yield
        finally:
            self._shift(activity, state, None)

    def lane(self, name: str, precedence: Sequence[str]) -> Busy:
        """Add a lane.

        Args:
            name: the lane's name.
            precedence: see :class:`~rl.run.process.ledger.Lane`.

        Returns:
            A function ``busy``: ``with busy(state)`` counts the seconds of the context in the lane.
        """
        with self._lock:
            self._lanes[name] = Lane(self._taken_at, precedence)
        return partial(self.busy, name)

    def change(self, activity: Activity, state: str) -> None:
        """Set the state of an activity; see :meth:`Activity.enter`."""
        self._shift(activity, activity.state, state)

    def correct(self, activity: Activity, state: str, seconds: float) -> None:
        """Move past seconds of an activity to ``state``; see :meth:`Activity.was`."""
        with self._lock:
            now = self._clock()
            lasted = now - activity.since
            if not lasted > 0:
                return
            lane = self._lanes[activity.lane]
            lane.change(now, None, None)
            own = (lane.share - activity._share) * min(1.0, max(0.0, seconds) / lasted)
            lane.move(activity.state, state, own)

    def count_held(self, activity: Activity, seconds: float) -> None:
        """Count the last seconds for one activity alone; see :meth:`Activity.held`."""
        with self._lock:
            now, state = self._clock(), activity.state
            generates = state == GENERATE  # The policy's own code held the loop.
            if not generates:
                self.held_s += seconds
                activity.held_s += seconds
            for name, lane in self._lanes.items():
                if name == activity.lane:
                    lane.hold(now, state, seconds)
                elif not generates:
                    lane.hold(now, HELD, seconds, only=GENERATE)

    def progressed(self, what: str) -> None:
        """Record progress: for example, an episode ended or a micro-batch was learned."""
        self._progress = (self._clock(), what)

    def counted(self, what: str, done: int, total: int) -> None:
        """Record progress, and report its count: ``done`` of ``total``."""
        self.progressed(what)
        self._on_count(what, done, total)

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """Return a function that raises the count, from 0 to ``total``, by one at each call."""
        self._on_count(what, 0, total)
        numbers = itertools.count(1)
        return lambda: self.counted(what, next(numbers), total)

    def watch(self, source: Observable) -> None:
        """Include the progress of another source, such as a policy that samples tokens."""
        self._seen.append(source.progress())
        self._sources.append(source)  # After _seen: the watchdog's thread reads both.

    def component_status(self) -> dict[str, str]:
        """Status of each component of the watched sources, by the component's name."""
        return {
            name: does
            for source in self._sources
            for name, does in source.component_status().items()
        }

    def last_progress(self) -> tuple[float, str]:
        """Seconds since the last progress, and its description."""
        for index, source in enumerate(self._sources):
            number = source.progress()
            if number != self._seen[index]:
                self._seen[index] = number
                self.progressed("the policy")
        at, what = self._progress
        return self._clock() - at, what

    def waits(self) -> list[Waiting]:
        """The running activities, the longest in their current state first."""
        with self._lock:
            now, running = self._clock(), list(self._running.values())
        waiting = [Waiting(a.lane, a.name, a.state, now - a.since) for a in running]
        if self.elsewhere is not None:
            waiting += self.elsewhere.waits()
        return sorted(waiting, key=lambda one: -one.seconds)

    def num_restartable(self) -> int:
        """Number of running activities that can restart."""
        elsewhere = 0 if self.elsewhere is None else self.elsewhere.num_restartable()
        return len(self._restarts()) + elsewhere

    def restart_all(self) -> None:
        """Restart all activities that can restart. Call this on the event loop only."""
        for restart in self._restarts():
            restart()
        if self.elsewhere is not None:
            self.elsewhere.restart_all()

    def take(self) -> dict[str, float]:
        """Seconds since the last call, by state (``time/LANE/STATE``) and in all (``time/wall``).

        The states of each lane add up to ``time/wall``.
        """
        with self._lock:
            now = self._clock()
            passed, self._taken_at = now - self._taken_at, now
            taken = {
                f"time/{name}/{state}": seconds
                for name, lane in self._lanes.items()
                for state, seconds in sorted(lane.take(now).items())
            }
        seconds = {"time/wall": passed, **taken}
        return seconds if self.elsewhere is None else self.elsewhere.add_seconds(seconds)

    def _restarts(self) -> list[Callable[[], None]]:
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
