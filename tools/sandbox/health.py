"""How a sandbox fares: what it counted, and what is under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace

from tools.sandbox.queue import FairQueue
from tools.sandbox.results import Status
from tools.sandbox.zygotes import Zygotes

_KILLS = (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT, Status.KILLED)
_GAUGES = ("waiting", "in_flight", "sessions", "queue_wait_p95_s")


class Tally:
    """What a sandbox counts while it works; a few additions for each run."""

    def __init__(self) -> None:
        self.runs = 0
        self.grades = 0
        self.calls = 0
        self.failures = 0
        self.retries = 0
        self.kills: Counter[Status] = Counter()

    def end(self, status: Status) -> None:
        """A process has ended; one that a limit or a signal ended counts as a kill."""
        if status in _KILLS:
            self.kills[status] += 1


@dataclass(frozen=True, slots=True)
class Health:
    """A sandbox's counters since its start, and its gauges now."""

    runs: int
    """Programs that came to an end, those of grades included."""
    grades: int
    """Submissions graded."""
    calls: int
    """Calls of sessions."""
    busy_s: float
    """Seconds in which at least one was under way."""
    failures: int
    """``SandboxFailure`` raised to a caller."""
    retries: int
    """Runs and grades that the sandbox lost and repeated."""
    timeouts: int
    """Ended by the limit of wall or processor time; the next three by theirs."""
    memory_kills: int
    output_kills: int
    signal_kills: int
    """A crash, the program itself, or a limit of files or processes."""
    zygotes_started: int
    zygotes_recycled: int
    """Replaced in good order, after so many runs."""
    zygotes_died: int
    """Replaced because they were gone, or had lost a run."""
    queued: int
    """Runs, grades and calls that got their place."""
    queue_wait_s: float
    """Seconds that they waited for it, in all."""
    queue_wait_p95_s: float
    """95th percentile of the last thousand waits."""
    waiting: int
    """Callers in the queue now."""
    in_flight: int
    """Runs, grades and calls under way now."""
    sessions: int
    """Sessions, copies and snapshots open now."""

    def since(self, earlier: Health) -> Health:
        """What was counted after ``earlier``; gauges stay."""
        counted = [field.name for field in fields(self) if field.name not in _GAUGES]
        return replace(
            self, **{name: getattr(self, name) - getattr(earlier, name) for name in counted}
        )

    @property
    def runs_per_second(self) -> float:
        """Of the seconds in which anything was under way."""
        return self.runs / self.busy_s if self.busy_s else 0.0

    @property
    def queue_wait_mean_s(self) -> float:
        """Seconds that a run, grade or call waited for its place."""
        return self.queue_wait_s / self.queued if self.queued else 0.0

    def metrics(self) -> dict[str, float]:
        """The numbers under the names of a run's metrics."""
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


def measure(tally: Tally, slots: FairQueue, places: FairQueue, zygotes: Zygotes) -> Health:
    """The numbers of a running sandbox; ``places`` are those of its sessions."""
    return Health(
        runs=tally.runs,
        grades=tally.grades,
        calls=tally.calls,
        busy_s=slots.busy_s,
        failures=tally.failures + zygotes.refused,
        retries=tally.retries,
        timeouts=tally.kills[Status.TIMEOUT],
        memory_kills=tally.kills[Status.MEMORY],
        output_kills=tally.kills[Status.OUTPUT],
        signal_kills=tally.kills[Status.KILLED],
        zygotes_started=zygotes.started,
        zygotes_recycled=zygotes.recycled,
        zygotes_died=zygotes.died,
        queued=slots.served,
        queue_wait_s=slots.waited_s,
        queue_wait_p95_s=slots.wait_p95_s(),
        waiting=slots.waiting,
        in_flight=slots.in_flight,
        sessions=places.in_flight,
    )
