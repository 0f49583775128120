"""The last instance over everything that a run waits for.

What can hang has a deadline of its own: an environment's step, an episode, a server without
tokens, a part that closes. The watchdog looks at the run as a whole, from a thread of its own:
where nothing gets further for ``stall_s`` it writes down what everything waits for, has the waiting
episodes begun again, and ends the run if that does not help. It writes ``status.json`` as well.
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

from rl.config import TrainConfig
from rl.errors import STALLED as STALLED_CODE
from rl.errors import UNCLOSED, RunFailure, RunStalled
from rl.run import state as states
from rl.run.activity import CLOSE, Activities
from rl.run.host import COMMAND, Host
from rl.run.ledger import IDLE
from rl.run.stacks import place_of, report
from rl.run.state import RunState, born_at, namespace, write_state

logger = logging.getLogger(__name__)
REPORT = "stalled.txt"
WRITE_EVERY_S = 2.0
MOST_WAITS = 100
"""Of so many activities the file tells."""
STOPPED_S = 5.0
"""A look that comes so much too late says that the whole process was stopped."""
_TOLD_WAITS = 3
_BEYOND = 1.25
"""A part's own deadline comes first; the watchdog's is this many times as long."""


class Watchdog:
    """Watches one run while the context lasts, which is outermost of all that the run opens.

    Args:
        activities: what it watches.
        folder: the run's, for ``status.json`` and ``stalled.txt``.
        config: the run's: its steps, and ``stall_s`` and ``close_s``.
        say: tells the user.
        host: ends what could not be ended in order.

    Raises:
        RunStalled: nothing got further, and the run could be ended in order. Where it could not,
            the process ends with the same exit code.
    """

    def __init__(
        self,
        activities: Activities,
        folder: Path,
        config: TrainConfig,
        say: Callable[[str], None],
        host: Host = COMMAND,
    ) -> None:
        self._activities = activities
        self._folder = folder
        self._stall_s, self._close_s = config.stall_s, config.close_s
        self._steps, self._max_seconds = config.steps, config.max_seconds
        self._say, self._host = say, host
        self._over = threading.Event()
        self._began = time.time()
        self._answered = self._written = time.monotonic()
        self._woke = self._went_on = self._answered
        """When it last began to count, after it was stopped."""
        self._asked = True
        self._recovered_at: float | None = None
        self._ending_at: float | None = None
        self._told = ""
        self._recoveries = 0
        self._unwritable = False
        self.step = 0
        """Steps done."""
        self.finished = False
        """Set at the end: whether the run did its steps, all or those that max_seconds let it."""

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
                await asyncio.sleep(0)  # The thread's wish may not have come yet.
            while self._task.cancelling():
                self._task.uncancel()
            self._told = "; ".join([self._told, *getattr(error, "__notes__", ())])
            self._write(states.STALLED, STALLED_CODE)
            raise RunStalled(self._told) from error
        if error is None:
            if self.finished:
                # What was done about a stall is over; that it was is counted.
                self._told = self._cut_short()
                if self._told:
                    self._tell(self._told)
            self._write(states.FINISHED if self.finished else states.INTERRUPTED)
            return
        self._told = f"{type(error).__name__}: {error}"
        stopped = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
        code = error.exit_code if isinstance(error, RunFailure) else None
        self._write(states.INTERRUPTED if stopped else states.FAILED, code)

    def _cut_short(self) -> str:
        """Why a run that is finished did fewer steps than all; "" where it did all."""
        if self.step >= self._steps:
            return ""
        return (
            f"max_seconds ({self._max_seconds:g}) ended it after step {self.step} of "
            f"{self._steps}: resume=auto and a larger max_seconds go on"
        )

    def _watch(self) -> None:
        """The thread: look, act, write."""
        limits = [WRITE_EVERY_S, self._close_s / 10, self._stall_s / 10 or WRITE_EVERY_S]
        every_s = max(0.02, min(limits))
        self._woke = time.monotonic()
        while not self._over.wait(every_s):
            now = time.monotonic()
            if (stopped_s := now - self._woke - every_s) > STOPPED_S:
                self._begin_anew(now, stopped_s)
            self._woke = now
            try:
                self._look()
            except Exception:
                # The last instance must not end for what one look could not do.
                logger.exception("a look at the run failed")

    def _look(self) -> None:
        if not self._asked and not self._loop.is_closed():
            self._asked = True
            self._loop.call_soon_threadsafe(self._beat)
        self._look_at_closing()
        self._look_at_progress()
        if time.monotonic() - self._written >= WRITE_EVERY_S:
            self._write(states.ENDING if self._ending_at else states.RUNNING)

    def _begin_anew(self, now: float, stopped_s: float) -> None:
        """The process was stopped, as by Ctrl-Z: nobody could get further in that time."""
        self._activities.progressed(f"going on after {stopped_s:.0f} s in which it was stopped")
        self._answered = self._went_on = now
        if self._ending_at is not None:
            self._ending_at = now

    def _was_stopped(self) -> bool:
        """Whether the process was stopped during this look: the next look begins anew."""
        return time.monotonic() - self._woke > STOPPED_S

    def _beat(self) -> None:
        """On the event loop, where it answers."""
        self._answered, self._asked = time.monotonic(), False

    def _look_at_closing(self) -> None:
        """End the process where a part neither closes nor lets itself be cancelled."""
        now, limit_s = time.monotonic(), _BEYOND * self._close_s
        closing = [w for w in self._activities.waits() if w.lane == CLOSE]
        if self._was_stopped():
            return
        if closing and min(closing[0].seconds, now - self._went_on) > limit_s:
            told = f"{closing[0].name} did not close within close_s ({self._close_s:g} s)"
            self._end_process(STALLED_CODE if self._ending_at else UNCLOSED, told)
            return
        began = self._ending_at
        if began and not closing and now - max(began, self._activities.closed_at) > limit_s:
            self._end_process(STALLED_CODE, f"what runs did not end within {self._close_s:g} s")

    def _look_at_progress(self) -> None:
        silent_s, _ = self._activities.last_progress()
        now = time.monotonic()
        if not self._stall_s or self._ending_at is not None or self._was_stopped():
            return
        if silent_s <= self._stall_s:
            if self._recovered_at is not None:
                self._recovered_at, self._told = None, ""
                self._tell("watchdog: something gets further again")
            return
        if any(waiting.lane == CLOSE for waiting in self._activities.waits()):
            return  # That has a deadline of its own.
        since = now - self._recovered_at if self._recovered_at is not None else None
        if since is not None and since <= self._stall_s:
            return
        self._told = self._stalled(silent_s)
        self._report()
        if now - self._answered > self._stall_s:
            holder = place_of(self._thread_of_loop)
            self._end_process(STALLED_CODE, f"{self._told}; the event loop is held at {holder}")
        elif since is None and self._activities.num_able():
            self._recovered_at, self._recoveries = now, self._recoveries + 1
            self._told += "; its episodes are begun again"
            self._loop.call_soon_threadsafe(self._activities.give_up)
            self._tell(f"watchdog: {self._told}")
            self._write(states.STALLED)
        else:
            self._ending_at = now
            self._told += "; the run ends"
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._tell(f"watchdog: {self._told}")
            self._write(states.ENDING)

    def _stalled(self, silent_s: float) -> str:
        """What a person must know, in a line."""
        waits = [w for w in self._activities.waits() if w.state != IDLE]
        named = "; ".join(map(str, waits[:_TOLD_WAITS])) or "nothing is under way"
        more = f"; and {len(waits) - _TOLD_WAITS} more" if len(waits) > _TOLD_WAITS else ""
        return (
            f"nothing got further for {silent_s:.1f} s (stall_s={self._stall_s:g}): {named}{more}"
        )

    def _report(self) -> None:
        waits = "".join(f"{waiting}\n" for waiting in self._activities.waits())
        parts = "".join(f"{name}: {does}\n" for name, does in self._activities.parts().items())
        text = f"{time.strftime('%F %T')} {self._told}\n\n{waits}{parts}\n{report(self._loop)}\n"
        try:
            with (self._folder / REPORT).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._folder / REPORT, error)

    def _tell(self, words: str) -> None:
        try:
            self._say(words)
        # A terminal that is gone is told by an OSError; rich makes an exit of it.
        except (Exception, SystemExit) as error:
            logger.warning("cannot be told: %s (%r)", words, error)

    def _end_process(self, code: int, told: str) -> None:
        self._told = f"{self._told}; {told}" if self._ending_at is not None else told
        self._report()
        self._write(states.STALLED if code == STALLED_CODE else states.FAILED, code)
        self._over.set()
        self._host.end(code, self._told)

    def _write(self, state: str, code: int | None = None) -> None:
        now = self._written = time.monotonic()
        progress_s, progress = self._activities.last_progress()
        waits = self._activities.waits()
        moment = RunState(
            state=states.STALLED if state == states.RUNNING and self._recovered_at else state,
            step=self.step,
            steps=self._steps,
            pid=os.getpid(),
            born=born_at(os.getpid()),
            host=platform.node(),
            namespace=namespace(),
            began=self._began,
            written=time.time(),
            progress_s=progress_s,
            progress=progress,
            loop_s=now - self._answered,
            waits=[asdict(waiting) for waiting in waits[:MOST_WAITS]],
            num_waits=len(waits),
            parts=self._activities.parts(),
            recoveries=self._recoveries,
            told=self._told,
            exit_code=code,
        )
        try:
            write_state(self._folder, moment)
            self._unwritable = False
        except OSError as error:
            # Said once: a disk that is full stays so for a while.
            if not self._unwritable:
                logger.warning("%s cannot be written: %s", self._folder / states.FILE, error)
            self._unwritable = True
