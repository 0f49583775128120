"""Seconds of a run by lane and state; the states of each lane add up to the wall time.

A lane is a part of the run, such as the rollouts or the learner. A state is what an activity of the
lane does, such as generating or waiting for an environment.

Lanes run concurrently: with ``staleness`` above 0, rollouts run during learning. The seconds of
different lanes are therefore not added. Within a lane, the running activities share each instant
equally, or the first state in the lane's precedence gets the whole instant. An instant without
activities is idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

IDLE = "idle"


class Lane:
    """The seconds of one lane. The caller passes a monotonic time and prevents concurrent calls.

    Args:
        now: the start, in seconds.
        precedence: states in order of precedence. While an activity is in one of them, the first
            such state gets the whole instant. If empty, activities share each instant.
    """

    def __init__(self, now: float, precedence: Sequence[str] = ()) -> None:
        self._precedence = precedence
        self._running: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._now = now
        self.share = 0.0
        """Seconds that an activity running since the start would have been assigned."""

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

    def hold(self, now: float, state: str, seconds: float, only: str = "") -> None:
        """Reassign the last ``seconds``, in which no activity changed its state, to ``state``.

        Args:
            now: the time.
            state: the state of the activity that let no other go on.
            seconds: seconds until ``now``.
            only: reassign only the seconds of this state, if given.
        """
        self._pass(now)
        self.share -= seconds / max(1, self._running.total())
        for before, share in self._shares().items():
            if only in ("", before):
                self.move(before, state, seconds * share)

    def take(self, now: float) -> dict[str, float]:
        """Seconds in each state since the last call.

        Including ``idle``, they add up to the time passed.
        """
        self._pass(now)
        taken = {IDLE: 0.0, **self._seconds}
        self._seconds.clear()
        return taken

    def _pass(self, now: float) -> None:
        passed, self._now = now - self._now, now
        shares = self._shares()
        self.share += passed / max(1, self._running.total())
        for state, share in (shares or {IDLE: 1.0}).items():
            self._seconds[state] += passed * share

    def _shares(self) -> dict[str, float]:
        """The share of each state in an instant; empty without activities."""
        total = self._running.total()
        first = next((state for state in self._precedence if self._running[state]), None)
        if first is not None:
            return {first: 1.0}
        return {state: count / total for state, count in self._running.items() if count}
