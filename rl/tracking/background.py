"""Runs a sink in its own thread, so that the sink's errors and delays do not affect the run.

Records wait in a queue until the sink accepts them. A record that a sink refuses is retried after
growing pauses, so a lost network connection loses no step. Each kind of problem is reported once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rl.errors import RunFailure, UsageError
from rl.tracking.mark import Mark
from rl.tracking.sink import Ending, RunInfo, Sink

logger = logging.getLogger(__name__)
MAX_WAITING = 10_000
"""Maximum number of waiting records. Beyond it, older records are dropped and the user is
warned."""
PAUSES_S = (1.0, 5.0, 20.0, 60.0)
"""Seconds of pause before each retry. The last number is used for all further retries."""


class Background:
    """Passes a run's records to one sink, in the sink's own thread.

    Args:
        name: the sink's name, for messages.
        sink: the sink.
        run: the run, for ``sink.open``.
        mark: remembers which records of this run the tracker has.
        report: called with a line for the user.
    """

    def __init__(
        self, name: str, sink: Sink, run: RunInfo, mark: Mark, report: Callable[[str], None]
    ) -> None:
        self._name, self._sink, self._run, self._mark = name, sink, run, mark
        self._report_line = report
        self._limit_s = sink.options.timeout_s
        self._records: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._ending: Ending | None = None
        self._changed = threading.Condition()
        self._tried = threading.Event()
        """Set after the first attempt to open the sink."""
        self._given_up = threading.Event()
        """Set when the run no longer waits for the sink."""
        self._error: BaseException | None = None
        """The error of the first attempt to open the sink."""
        self._late = False
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"turnwise-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread, which opens the sink."""
        self._thread.start()

    def wait_open(self) -> None:
        """Wait at most ``timeout_s`` seconds until the sink is open.

        Raises:
            UsageError: the sink refused to open, most often because it is not set up.
        """
        if not self._tried.wait(self._limit_s):
            with self._changed:
                self._late = not self._tried.is_set()
        if self._late:
            waits = "the run continues, and its metrics wait for the sink"
            self._report("late", f"not started within {self._limit_s:g} s; {waits}")
        elif self._error is not None:
            raise UsageError(
                f"log={self._name} cannot start: {_in_one_line(self._error)}. Set it up, or leave "
                f"it out of log=..."
            ) from self._error

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Queue a record. Returns at once."""
        with self._changed:
            self._records.append((step, metrics))
            full = len(self._records) > MAX_WAITING
            if full:
                self._records.popleft()
            self._changed.notify()
        if full:
            dropped = "the oldest are dropped, and stay in metrics.jsonl"
            self._report("full", f"{MAX_WAITING} records wait; {dropped}")

    def finish(self, ending: Ending) -> None:
        """Queue the end of the run. Returns at once."""
        with self._changed:
            self._ending = ending
            self._changed.notify()

    def join(self, limit_s: float) -> None:
        """Wait at most ``limit_s`` seconds until the sink has all records."""
        self._thread.join(limit_s)
        if self._thread.is_alive():
            waiting = len(self._records)
            left = f"; {waiting} records are only in metrics.jsonl" if waiting else ""
            self._report(
                "end", f"not finished within {self._limit_s:g} s, the run ends without it{left}"
            )
        self._given_up.set()
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        """Open the sink, and pass records to it until the end of the run."""
        if not self._attempt("start", self._open, first=True):
            return
        while (record := self._next()) is not None:
            if not self._attempt(f"log step {record[0]}", partial(self._deliver, *record)):
                return
            with self._changed:
                if self._records and self._records[0] is record:
                    self._records.popleft()
        if (ending := self._ending) is not None:
            self._attempt("finish", lambda: self._sink.finish(ending))

    def _open(self) -> None:
        run = self._run
        self._mark.opened(self._sink.open(run, self._mark.id))
        if self._sink.rewinds:
            self._mark.rewound(run.step)
        elif run.step < self._mark.step:
            again = f"steps {run.step + 1} to {self._mark.step}"
            self._report("again", f"{again} are already there; they are not logged again")
        if self._sink.place:
            self._report("place", self._sink.place)

    def _deliver(self, step: int, metrics: Mapping[str, Any]) -> None:
        missing = self._mark.missing(step, metrics)
        if missing:
            self._sink.log(step, missing)
            self._mark.delivered(step, missing)

    def _next(self) -> tuple[int, Mapping[str, Any]] | None:
        """The oldest record, which stays in the queue, or None if there are no more."""
        with self._changed:
            while not self._records:
                if self._ending is not None or self._given_up.is_set():
                    return None
                self._changed.wait()
            return self._records[0]

    def _attempt(self, what: str, action: Callable[[], None], first: bool = False) -> bool:
        """Call ``action`` until it succeeds. Returns False if the run gave up waiting."""
        tries = 0
        while not self._given_up.is_set():
            try:
                action()
            # Foreign code: its errors must not end the run.
            except (Exception, SystemExit) as error:
                if first and self._refuse(error):
                    return False
                logger.debug("%s cannot %s", self._name, what, exc_info=True)
                pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                self._report("trouble", f"cannot {what}: {_in_one_line(error)}; it is retried")
                tries += 1
                self._given_up.wait(pause_s)
            else:
                self._tried.set()
                if tries:
                    self._report("well", "works again")
                return True
        return False

    def _refuse(self, error: BaseException) -> bool:
        """Pass the error to a run that waits for the sink to open.

        Returns False if no run waits.
        """
        with self._changed:
            if self._late:
                return False
            self._error = error
            self._tried.set()
            return True

    def _report(self, kind: str, text: str) -> None:
        """Report a line to the user, once for each kind of problem."""
        if kind in self._reported or self._given_up.is_set():
            return
        self._reported.add(kind)
        try:
            self._report_line(f"{self._name}: {text}")
        # The thread must survive a screen that is a file on a full disk.
        except (RunFailure, OSError, SystemExit) as error:
            logger.warning("%s: %s (%s)", self._name, text, error)


def _in_one_line(error: BaseException) -> str:
    """Type and message of an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def join_all(sinks: Mapping[str, Background], limit_s: float) -> None:
    """Wait at most ``limit_s`` seconds in total until several sinks have all records."""
    until = time.monotonic() + limit_s
    for sink in sinks.values():
        sink.join(max(0.0, until - time.monotonic()))
