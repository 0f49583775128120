"""Where the seconds of a run went, by lane: each lane's parts add up to the wall time.

Lanes go on side by side (rollouts beside learning, where ``staleness`` is above 0), so their
seconds are not added to each other. Within a lane every instant is divided: among what its running
activities do, in equal shares, or wholly to the first state of its order of precedence. Where
nothing runs it is idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

IDLE = "idle"


class Lane:
    """The seconds of one lane. Its user gives the time, never going back, and keeps out threads.

    Args:
        now: when it begins, in seconds.
        precedence: states that take the whole of an instant while an activity is in them, the first
            before the others; empty: activities share it.
    """

    def __init__(self, now: float, precedence: Sequence[str] = ()) -> None:
        self._precedence = precedence
        self._running: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._now = now
        self.share = 0.0
        """The seconds that one activity would have had which ran all the time."""

    def change(self, now: float, before: str | None, after: str | None) -> None:
        """An activity begins (``before`` is None), goes from a state to another, or ends."""
        self._pass(now)
        if before is not None:
            self._running[before] -= 1
        if after is not None:
            self._running[after] += 1

    def move(self, before: str, after: str, seconds: float) -> None:
        """So many seconds that were counted as ``before`` turned out to be of ``after``."""
        moved = min(seconds, self._seconds[before])
        self._seconds[before] -= moved
        self._seconds[after] += moved

    def take(self, now: float) -> dict[str, float]:
        """Seconds by state since the last call; ``idle`` among them, and their sum is the time."""
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
