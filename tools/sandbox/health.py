"""Counters and gauges of a sandbox."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace

from tools.sandbox.host.queue import FairQueue
from tools.sandbox.host.session_permits import SessionPermits
from tools.sandbox.host.zygotes import Zygotes
from tools.sandbox.results import Status

_KILLS = (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT, Status.KILLED)
_GAUGES = ("waiting", "in_flight", "sessions", "queue_wait_p95_s")


class Tally:
    """Counters that a sandbox increments, with a few additions for each run."""

    def __init__(self) -> None:
        self.runs = 0
        self.grades = 0
        self.calls = 0
        self.failures = 0
        self.retries = 0
        self.kills: Counter[Status] = Counter()

    def end(self, status: Status) -> None:
        """Count a process that was ended by a limit or a signal as a kill."""
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
    """Seconds in which at least one run, grade or call was in flight."""
    failures: int
    """Number of ``SandboxFailure`` errors raised to callers."""
    retries: int
    """Number of runs and grades that the sandbox lost and repeated."""
    timeouts: int
    """Number of kills at the limit of wall or processor time."""
    memory_kills: int
    """Number of kills at the limit of memory."""
    output_kills: int
    """Number of kills at the limit of output."""
    signal_kills: int
    """Number of programs ended by a signal, because of a crash, by themselves, or at the limit of
    files or processes."""
    zygotes_started: int
    zygotes_recycled: int
    """Number of zygotes that were replaced after 2000 runs."""
    zygotes_died: int
    """Number of zygotes that were replaced because they died or lost a run."""
    queued: int
    """Number of runs, grades and calls that got a permit."""
    queue_wait_s: float
    """Total seconds that these waited for their permits."""
    queue_wait_p95_s: float
    """95th percentile of the last 1024 waits."""
    waiting: int
    """Number of callers in the queue."""
    in_flight: int
    """Number of runs, grades and calls that hold a permit."""
    sessions: int
    """Number of open sessions, copies and snapshots."""

    def since(self, earlier: Health) -> Health:
        """The counters minus those of ``earlier``, with the current gauges."""
        counted = [field.name for field in fields(self) if field.name not in _GAUGES]
        return replace(
            self, **{name: getattr(self, name) - getattr(earlier, name) for name in counted}
        )

    @property
    def runs_per_second(self) -> float:
        """Finished programs per second of ``busy_s``."""
        return self.runs / self.busy_s if self.busy_s else 0.0

    @property
    def queue_wait_mean_s(self) -> float:
        """Mean seconds that a run, grade or call waited for its permit."""
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


def measure(
    tally: Tally, permits: FairQueue, session_permits: SessionPermits, zygotes: Zygotes
) -> Health:
    """The health of a running sandbox.

    Args:
        tally: its counters.
        permits: its queue of runs, grades and session calls.
        session_permits: its permits for open sessions.
        zygotes: its zygotes.
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
