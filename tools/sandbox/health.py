"""Counters and gauges of a sandbox, for monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tools.sandbox.host.queue import FairQueue
from tools.sandbox.host.session_permits import SessionPermits
from tools.sandbox.host.zygotes import Zygotes
from tools.sandbox.results import Status

_KILLS = (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT, Status.KILLED)
_GAUGES = ("waiting", "in_flight", "sessions", "queue_wait_p95_s")


class Tally:
    """Counters that a sandbox increments during each run."""

    def __init__(self) -> None:
        self.runs = 0
        self.grades = 0
        self.calls = 0
        self.failures = 0
        self.retries = 0
        self.kills: Counter[Status] = Counter()

    def end(self, status: Status) -> None:
        """Count the end of a process with this status. A limit or a signal counts as a kill."""
        if status in _KILLS:
            self.kills[status] += 1


@dataclass(frozen=True, slots=True)
class Health:
    """A sandbox's counters since its start, and its current gauges."""

    runs: int
    """Number of finished programs, including those of grades."""
    grades: int
    """Number of graded submissions."""
    calls: int
    """Number of session calls."""
    busy_s: float
    """Seconds during which at least one run, grade or call was in flight."""
    failures: int
    """Number of ``SandboxFailure`` errors raised to callers."""
    retries: int
    """Number of runs and grades that the sandbox repeated, because it lost their first attempt."""
    timeouts: int
    """Number of programs killed because they exceeded the limit of wall-clock or processor time."""
    memory_kills: int
    """Number of programs killed because they exceeded the memory limit."""
    output_kills: int
    """Number of programs killed because they exceeded the output limit."""
    signal_kills: int
    """Number of programs that a signal ended: a crash, a signal from the program itself, or the
    limit of files or processes."""
    zygotes_started: int
    zygotes_recycled: int
    """Number of zygotes (processes that fork the runs) that were replaced after 2000 runs."""
    zygotes_died: int
    """Number of zygotes that were replaced because they died or lost a run."""
    queued: int
    """Number of runs, grades and calls that got a permit."""
    queue_wait_s: float
    """Total seconds that runs, grades and calls waited for their permits."""
    queue_wait_p95_s: float
    """95th percentile, in seconds, of the last 1024 waits for a permit."""
    waiting: int
    """Number of callers that wait in the queue for a permit."""
    in_flight: int
    """Number of runs, grades and calls that hold a permit."""
    sessions: int
    """Number of open sessions, copies and snapshots."""

    def since(self, earlier: Health) -> Health:
        """This health with the counters of ``earlier`` subtracted.

        Gauges keep their current values.
        """
        before = earlier.counters()
        return replace(
            self, **{name: count - before[name] for name, count in self.counters().items()}
        )

    def counters(self) -> dict[str, Any]:
        """The counters by name, without the gauges."""
        names = (field.name for field in fields(self) if field.name not in _GAUGES)
        return {name: getattr(self, name) for name in names}

    @property
    def runs_per_second(self) -> float:
        """Finished programs per second of ``busy_s``."""
        return self.runs / self.busy_s if self.busy_s else 0.0

    @property
    def queue_wait_mean_s(self) -> float:
        """Mean seconds that a run, grade or session call waited for its permit."""
        return self.queue_wait_s / self.queued if self.queued else 0.0

    def metrics(self) -> dict[str, float]:
        """The metrics that training runs log, by name."""
        return {
            "runs": self.runs,
            "runs_per_second": self.runs_per_second,
            "grades": self.grades,
            "session_calls": self.calls,
            "queue_wait_mean": self.queue_wait_mean_s,
            "queue_wait_p95": self.queue_wait_p95_s,
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            "sessions": self.sessions,
            "failures": self.failures,
            "retries": self.retries,
            "kills/timeout": self.timeouts,
            "kills/memory": self.memory_kills,
            "kills/output": self.output_kills,
            "kills/signal": self.signal_kills,
            "zygotes/started": self.zygotes_started,
            "zygotes/recycled": self.zygotes_recycled,
            "zygotes/died": self.zygotes_died,
        }


def total_of(healths: Sequence[Health]) -> Health:
    """The healths of several sandboxes, added up. The slowest 95th percentile counts."""
    total = {f.name: sum(getattr(health, f.name) for health in healths) for f in fields(Health)}
    slowest = max(health.queue_wait_p95_s for health in healths)
    return Health(**(total | {"queue_wait_p95_s": slowest}))


def measure(
    tally: Tally, permits: FairQueue, session_permits: SessionPermits, zygotes: Zygotes
) -> Health:
    """The health of a running sandbox.

    Args:
        tally: the sandbox's counters.
        permits: the sandbox's queue of runs, grades and session calls.
        session_permits: the sandbox's permits for open sessions.
        zygotes: the sandbox's zygotes.
    """
    return Health(
        runs=tally.runs,
        grades=tally.grades,
        calls=tally.calls,
        busy_s=permits.busy_s,
        failures=tally.failures + zygotes.refused,
        retries=tally.retries,
        timeouts=tally.kills[Status.TIMEOUT],
        memory_kills=tally.kills[Status.MEMORY],
        output_kills=tally.kills[Status.OUTPUT],
        signal_kills=tally.kills[Status.KILLED],
        zygotes_started=zygotes.started,
        zygotes_recycled=zygotes.recycled,
        zygotes_died=zygotes.died,
        queued=permits.served,
        queue_wait_s=permits.waited_s,
        queue_wait_p95_s=permits.wait_p95_s(),
        waiting=permits.waiting,
        in_flight=permits.in_flight,
        sessions=session_permits.in_flight,
    )
