"""Seconds of a run by lane and state; the states of each lane add up to the wall time.

Lanes run concurrently (rollouts beside learning, if ``staleness`` is above 0), so the seconds of
different lanes are not added. Within a lane, the running activities share each instant equally, or
the first state in the lane's precedence gets all of it. An instant without activities is idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

IDLE = "idle"


class Lane:
    """The seconds of one lane. The caller passes a monotonic time, and locks out other threads.

    Args:
        now: the start, in seconds.
        precedence: states that get a whole instant while an activity is in them, the first one
            before the others; empty: activities share each instant.
    """

    def __init__(self, now: float, precedence: Sequence[str] = ()) -> None:
        self._precedence = precedence
        self._running: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._now = now
        self.share = 0.0
        """The seconds of an activity that had run since the start."""

    def change(self, now: float, before: str | None, after: str | None) -> None:
        """Record an activity that starts (``before`` is None), changes its state, or ends."""
        self._pass(now)
        if before is not None:
            self._running[before] -= 1
        if after is not None:
            self._running[after] += 1

    def move(self, before: str, after: str, seconds: float) -> None:
        """Reassign seconds from state ``before`` to state ``after``."""
        moved = min(seconds, self._seconds[before])
        self._seconds[before] -= moved
        self._seconds[after] += moved

    def take(self, now: float) -> dict[str, float]:
        """Seconds in each state since the last call; with ``idle``, they sum to the time passed."""
        self._pass(now)
        taken = {IDLE: 0.0, **self._seconds}
        self._seconds.clear()
        return taken

    def _pass(self, now: float) -> None:
        passed, self._now = now - self._now, now
        total = self._running.total()
        if total == 0:
            self._seconds[IDLE] += passed
            return
        self.share += passed / total
        first = next((state for state in self._precedence if self._running[state]), None)
        if first is not None:
            self._seconds[first] += passed
            return
        for state, count in self._running.items():
            if count:
                self._seconds[state] += passed * count / total
