"""The watchdog: the outermost deadline of a run.

An environment's step, an episode, a server without tokens, and a component that closes each have a
deadline of their own. The watchdog checks the run as a whole, from its own thread. After
``stall_s`` seconds without progress, it records all waits and restarts the waiting episodes. If
that does not help, it ends the run. It also writes ``status.json``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from rl.errors import STALLED as STALLED_CODE
from rl.errors import UNCLOSED, RunFailure, RunStalled
from rl.run.process import state as states
from rl.run.process.activity import CLOSE, Activities
from rl.run.process.host import COMMAND, Host
from rl.run.process.ledger import IDLE
from rl.run.process.stacks import position_of, stack_report
from rl.run.process.state import RunState, born_at, namespace, write_state
from rl.settings.train import TrainConfig

logger = logging.getLogger(__name__)
REPORT = "stalled.txt"
WRITE_EVERY_S = 2.0
MAX_WAITS = 100
"""Maximum number of activities in status.json."""
STOPPED_S = 5.0
"""A check this many seconds late means that the process was suspended."""
_SHOWN_WAITS = 3
_MARGIN = 1.25
"""The watchdog's deadline for closing a component is this multiple of ``close_s``, so that the
deadline ``close_s`` itself is reached first."""


class Watchdog:
    """Watches a run while its context is open. The context encloses all other contexts of the run.

    Args:
        activities: the run's activities.
        folder: the run's folder, for ``status.json`` and ``stalled.txt``.
        config: the run's settings, of which the watchdog uses ``steps``, ``stall_s`` and
            ``close_s``.
        report: called with a line for the user.
        host: ends a run that cannot be closed normally.
        finished_step: number of steps after which the run had finished, if it continues a finished
            run. Without a further step, it stays finished.

    Raises:
        RunStalled: the run made no progress and was closed normally. If it cannot be closed, the
            process ends with the same exit code.
    """

    def __init__(
        self,
        activities: Activities,
        folder: Path,
        config: TrainConfig,
        report: Callable[[str], None],
        host: Host = COMMAND,
        finished_step: int | None = None,
    ) -> None:
        self._activities = activities
        self._folder = folder
        self._stall_s, self._close_s = config.stall_s, config.close_s
        self._steps, self._max_seconds = config.steps, config.max_seconds
        self._report, self._host = report, host
        self._over = threading.Event()
        self._began = time.time()
        self._answered = self._written = time.monotonic()
        self._woke = self._went_on = self._answered
        """Times of the last check and of the last resumption after a suspension."""
        self._asked = True
        self._recovered_at: float | None = None
        self._ending_at: float | None = None
        self._message = ""
        self._recoveries = 0
        self._unwritable = False
        self._finished_step = finished_step
        self.step = finished_step or 0
        """Number of steps that are done."""
        self.finished = False
        """Whether the run ended after all its steps, or after as many as max_seconds allowed."""

    async def __aenter__(self) -> Self:
        self._loop, self._thread_of_loop = asyncio.get_running_loop(), threading.get_ident()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._beat()
        self._write(states.RUNNING)
        self._thread = threading.Thread(target=self._watch, name="turnwise-watchdog", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(self._close_s)
        if self._ending_at is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # The thread's cancellation may not have arrived yet.
            while self._task.cancelling():
                self._task.uncancel()
            self._message = "; ".join([self._message, *getattr(error, "__notes__", ())])
            self._write(states.STALLED, STALLED_CODE)
            raise RunStalled(self._message) from error
        if error is None:
            if self.finished:
                # Recovered stalls are only counted.
                self._message = self._cut_short()
                if self._message:
                    self._report_safely(self._message)
            self._write(states.FINISHED if self.finished else states.INTERRUPTED)
            return
        stopped = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
        # Who stopped a run knows it.
        self._message = "" if stopped else f"{type(error).__name__}: {error}"
        code = error.exit_code if isinstance(error, RunFailure) else None
        self._write(states.INTERRUPTED if stopped else states.FAILED, code)

    def _cut_short(self) -> str:
        """The reason why a finished run did not do all steps, or "" if it did."""
        if self.step >= self._steps:
            return ""
        return (
            f"max_seconds ({self._max_seconds:g}) ended it after step {self.step} of "
            f"{self._steps}: resume=auto and a larger max_seconds go on"
        )

    def _watch(self) -> None:
        """Check the run, act if necessary, and write the status, until the run ends."""
        limits = [WRITE_EVERY_S, self._close_s / 10, self._stall_s / 10 or WRITE_EVERY_S]
        every_s = max(0.02, min(limits))
        self._woke = time.monotonic()
        while not self._over.wait(every_s):
            now = time.monotonic()
            if (stopped_s := now - self._woke - every_s) > STOPPED_S:
                self._resume_after(now, stopped_s)
            self._woke = now
            try:
                self._check()
            except Exception:
                # The watchdog must survive an error of a single check.
                logger.exception("a check of the run failed")

    def _check(self) -> None:
        if not self._asked and not self._loop.is_closed():
            self._asked = True
            self._loop.call_soon_threadsafe(self._beat)
        self._check_closing()
        self._check_progress()
        if time.monotonic() - self._written >= WRITE_EVERY_S:
            self._write(states.ENDING if self._ending_at else states.RUNNING)

    def _resume_after(self, now: float, stopped_s: float) -> None:
        """Exclude a suspension, for example by Ctrl-Z, from the time without progress."""
        self._activities.progressed(f"going on after {stopped_s:.0f} s in which it was stopped")
        self._answered = self._went_on = now
        if self._ending_at is not None:
            self._ending_at = now

    def _was_suspended(self) -> bool:
        """Whether the process was suspended during this check. If so, the next check handles it."""
        return time.monotonic() - self._woke > STOPPED_S

    def _beat(self) -> None:
        """Record a response of the event loop. Called on the event loop."""
        self._answered, self._asked = time.monotonic(), False

    def _check_closing(self) -> None:
        """End the process if a component neither closes nor can be cancelled."""
        now, limit_s = time.monotonic(), _MARGIN * self._close_s
        closing = [w for w in self._activities.waits() if w.lane == CLOSE]
        if self._was_suspended():
            return
        if closing and min(closing[0].seconds, now - self._went_on) > limit_s:
            message = f"{closing[0].name} did not close within close_s ({self._close_s:g} s)"
            self._end_process(STALLED_CODE if self._ending_at else UNCLOSED, message)
            return
        began = self._ending_at
        if began and not closing and now - max(began, self._activities.closed_at) > limit_s:
            self._end_process(STALLED_CODE, f"what runs did not end within {self._close_s:g} s")

    def _check_progress(self) -> None:
        """After too long without progress, restart the waiting episodes or end the run."""
        silent_s, _ = self._activities.last_progress()
        now = time.monotonic()
        if not self._stall_s or self._ending_at is not None or self._was_suspended():
            return
        if silent_s <= self._stall_s:
            if self._recovered_at is not None:
                self._recovered_at, self._message = None, ""
                self._report_safely("watchdog: the run makes progress again")
            return
        if any(waiting.lane == CLOSE for waiting in self._activities.waits()):
            return  # Closing has its own deadline.
        since = now - self._recovered_at if self._recovered_at is not None else None
        if since is not None and since <= self._stall_s:
            return
        self._message = self._stalled(silent_s)
        self._append_report()
        if now - self._answered > self._stall_s:
            holder = position_of(self._thread_of_loop)
            self._end_process(STALLED_CODE, f"{self._message}; the event loop is held at {holder}")
        elif since is None and self._activities.num_restartable():
            self._recovered_at, self._recoveries = now, self._recoveries + 1
            self._message += "; its episodes restart"
            self._loop.call_soon_threadsafe(self._activities.restart_all)
            self._report_safely(f"watchdog: {self._message}")
            self._write(states.STALLED)
        else:
            self._ending_at = now
            self._message += "; the run ends"
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._report_safely(f"watchdog: {self._message}")
            self._write(states.ENDING)

    def _stalled(self, silent_s: float) -> str:
        """A line for the user: the time without progress, and the longest waits."""
        waits = [w for w in self._activities.waits() if w.state != IDLE]
        named = "; ".join(map(str, waits[:_SHOWN_WAITS])) or "nothing is under way"
        more = f"; and {len(waits) - _SHOWN_WAITS} more" if len(waits) > _SHOWN_WAITS else ""
        return f"no progress for {silent_s:.1f} s (stall_s={self._stall_s:g}): {named}{more}"

    def _append_report(self) -> None:
        waits = "".join(f"{waiting}\n" for waiting in self._activities.waits())
        status = self._activities.component_status()
        components = "".join(f"{name}: {does}\n" for name, does in status.items())
        head = f"{time.strftime('%F %T')} {self._message}"
        text = f"{head}\n\n{waits}{components}\n{stack_report(self._loop)}\n"
        try:
            with (self._folder / REPORT).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._folder / REPORT, error)

    def _report_safely(self, line: str) -> None:
        try:
            self._report(line)
        # rich turns the OSError of a closed terminal into SystemExit.
        except (Exception, SystemExit) as error:
            logger.warning("not shown: %s (%r)", line, error)

    def _end_process(self, code: int, message: str) -> None:
        ending = self._ending_at is not None
        self._message = f"{self._message}; {message}" if ending else message
        self._append_report()
        self._write(states.STALLED if code == STALLED_CODE else states.FAILED, code)
        self._over.set()
        self._host.end(code, self._message)

    def _write(self, state: str, code: int | None = None) -> None:
        steps, now = self._steps, time.monotonic()
        self._written = now
        ended = state in (states.INTERRUPTED, states.FAILED) or code is not None
        if ended and self.step == self._finished_step:
            state, code, steps = states.FINISHED, None, self.step
        progress_s, progress = self._activities.last_progress()
        waits = self._activities.waits()
        moment = RunState(
            state=states.STALLED if state == states.RUNNING and self._recovered_at else state,
            step=self.step,
            steps=steps,
            pid=os.getpid(),
            born=born_at(os.getpid()),
            host=platform.node(),
            namespace=namespace(),
            began=self._began,
            written=time.time(),
            progress_s=progress_s,
            progress=progress,
            loop_s=now - self._answered,
            waits=[asdict(waiting) for waiting in waits[:MAX_WAITS]],
            num_waits=len(waits),
            component_status=self._activities.component_status(),
            recoveries=self._recoveries,
            message=self._message,
            exit_code=code,
            finished_step=self._finished_step,
        )
        try:
            write_state(self._folder, moment)
            self._unwritable = False
        except OSError as error:
            # Logged once, as a full disk stays full for a while.
            if not self._unwritable:
                logger.warning("%s cannot be written: %s", self._folder / states.FILE, error)
            self._unwritable = True
