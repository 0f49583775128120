"""Runs the engine in its thread. Other threads send commands through a queue."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from agents.completion import Completion
from agents.local.engine import Engine
from agents.local.request import Request
from agents.local.waves import Gate
from agents.policy import PolicyFailure
from agents.torch_thread import TorchThread

_T = TypeVar("_T")
_Outcome = Completion | Exception
_ALARM_ENDS_S = 1.0
"""Seconds to wait for the thread of a cancelled timer."""


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    answer: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    done: concurrent.futures.Future[Any]


class Worker:
    """Steps the engine while it has work, runs commands between steps, and resolves futures.

    Each step is a separate job, so that other users of the thread get their turns.

    Args:
        engine: the engine, which only the thread uses from now on.
        gate: holds requests back in deterministic mode. If None, requests start at once.
        thread: the thread that computes the steps.
        deadline_s: maximum seconds for a command, and for closing.
        cores: maximum number of cores of a step, or None for all cores of the thread.
    """

    def __init__(
        self,
        engine: Engine,
        gate: Gate | None,
        thread: TorchThread,
        deadline_s: float,
        cores: int | None = None,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._torch = thread
        self._cores = cores
        self._deadline_s = deadline_s
        self._commands: queue.SimpleQueue[_Submit | _Call] = queue.SimpleQueue()
        self._answers: dict[Request, asyncio.Future[Completion]] = {}
        self._closing = False
        self._over: PolicyFailure | None = None
        self._ended = threading.Event()
        self._awake = False
        """Whether a job that will read the commands is queued in the thread."""
        self._alarm: threading.Timer | None = None
        """Timer that wakes the thread at the gate's deadline, or None."""
        # Guards the end: no command may enter the queue after it was read for the last time.
        self._lock = threading.Lock()

    # Called by other threads.

    def submit(self, request: Request, answer: asyncio.Future[Completion]) -> None:
        """Queue a request. ``answer`` is a future of the running event loop."""
        self._put(_Submit(request, answer))

    def cancel(self, request: Request) -> None:
        """Stop a request whose caller no longer waits."""
        # A closed worker has stopped every request.
        with contextlib.suppress(PolicyFailure):
            self.post(lambda: self._cancel(request))

    def post(self, function: Callable[[], object]) -> None:
        """Queue ``function``, which the thread calls before its next step."""
        self._put(_Call(function, concurrent.futures.Future()))

    def call(self, function: Callable[[], _T]) -> _T:
        """Call ``function`` in the thread, wait for it, and return or raise its result."""
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._put(_Call(function, done))
        try:
            return done.result(self._deadline_s)
        except TimeoutError:
            raise self._silent() from None

    async def acall(self, function: Callable[[], _T]) -> _T:
        """Asynchronous form of :meth:`call`."""
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._put(_Call(function, done))
        answer = asyncio.wrap_future(done)
        # Not cancelled at the deadline: the thread still resolves it.
        await asyncio.wait({answer}, timeout=self._deadline_s)
        if not answer.done():
            raise self._silent()
        return answer.result()

    def _silent(self) -> PolicyFailure:
        return PolicyFailure(
            f"the generation thread did not answer within {self._deadline_s:g} s: one step of "
            "the model takes longer, or hangs",
            retryable=False,
        )

    async def close(self) -> None:
        """Close the worker. Waiting calls fail."""
        with contextlib.suppress(PolicyFailure):
            self.post(self._stop)
        if not await asyncio.to_thread(self._ended.wait, self._deadline_s):
            raise PolicyFailure(
                f"the generation thread did not end within {self._deadline_s:g} s",
                retryable=False,
            )

    def _put(self, command: _Submit | _Call) -> None:
        with self._lock:
            if self._over is not None:
                raise _copy_of(self._over)
            self._commands.put(command)
            if not self._awake:
                self._awake = True
                self._torch.post(self._turn, self._cores)

    # Called by the thread itself.

    def _turn(self) -> None:
        """Run the queued commands, and make one step."""
        over: PolicyFailure | None = None
        try:
            with torch.inference_mode():
                self._run_commands()
                if not self._closing:
                    self._open_gate()
                    if self._engine.busy:
                        self._step()
            if self._closing:
                over = PolicyFailure("the policy is closed", retryable=False)
        except Exception as error:
            over = PolicyFailure(
                f"the generation thread failed: {type(error).__name__}: {error}", retryable=False
            )
            over.__cause__ = error
        with self._lock:
            self._over = over
            self._awake = over is None and (self._engine.busy or not self._commands.empty())
            if self._awake:
                self._torch.post(self._turn, self._cores)
        if over is not None:
            self._end(over)
        elif not self._awake:
            self._set_alarm()

    def _end(self, over: PolicyFailure) -> None:
        if (alarm := self._alarm) is not None:
            alarm.cancel()
            alarm.join(_ALARM_ENDS_S)
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Submit):
                self._answers[command.request] = command.answer
            else:
                command.done.set_exception(_copy_of(over))
        self._fail_all(over)
        self._ended.set()

    def _set_alarm(self) -> None:
        """If the gate holds a request, start a timer that wakes the thread at the gate's deadline.

        The thread then fails the held requests, unless other requests have moved the deadline.
        """
        patience = self._gate.remaining_s() if self._gate is not None else None
        if patience is not None and self._alarm is None:
            self._alarm = threading.Timer(patience, self._wake)
            self._alarm.daemon = True
            self._alarm.start()

    def _wake(self) -> None:
        self._alarm = None
        with contextlib.suppress(PolicyFailure):
            self.post(int)

    def _run_commands(self) -> None:
        """Run the queued commands until the queue is empty or the gate's wave is complete."""
        while not self._closing:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if isinstance(command, _Submit):
                self._accept(command)
            else:
                try:
                    command.done.set_result(command.function())
                # Every exception belongs to the caller.
                except Exception as error:
                    command.done.set_exception(error)
            if self._gate is not None and self._gate.is_complete:
                return

    def _accept(self, command: _Submit) -> None:
        self._answers[command.request] = command.answer
        if self._gate is None:
            self._engine.submit(command.request)
            return
        try:
            self._gate.hold(command.request)
        except ValueError as error:
            self._deliver([(command.request, error)])

    def _cancel(self, request: Request) -> None:
        self._answers.pop(request, None)
        self._engine.cancel(request)
        if self._gate is not None:
            self._gate.cancel(request)

    def _stop(self) -> None:
        self._closing = True

    def _open_gate(self) -> None:
        """Between two waves, release the rows of ended episodes and admit the next wave."""
        if self._gate is None or self._engine.busy:
            return
        try:
            self._gate.check()
        except PolicyFailure as failure:
            self._deliver((request, _copy_of(failure)) for request in self._gate.abandon())
        for session in self._gate.take_ended():
            self._engine.end(session)
        for request in self._gate.take_wave():
            self._engine.submit(request)

    def _step(self) -> None:
        try:
            finished = self._engine.step()
        except PolicyFailure as failure:
            # The weights are broken, not the thread: it can continue with others.
            self._engine.abandon()
            if self._gate is not None:
                self._gate.abandon()
            self._fail_all(failure)
            return
        self._deliver((request, request.completion()) for request in finished)
        if self._gate is not None and not self._engine.busy:
            self._gate.touch()

    def _fail_all(self, failure: PolicyFailure) -> None:
        self._deliver([(request, _copy_of(failure)) for request in self._answers])

    def _deliver(self, outcomes: Iterable[tuple[Request, _Outcome]]) -> None:
        """Resolve futures in their own loops, with one wake-up per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, _Outcome]]] = {}
        for request, outcome in outcomes:
            answer = self._answers.pop(request)
            by_loop.setdefault(answer.get_loop(), []).append((answer, outcome))
        for loop, resolved in by_loop.items():
            # No caller waits in a closed loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, resolved)


def _resolve(resolved: list[tuple[asyncio.Future[Completion], _Outcome]]) -> None:
    for answer, outcome in resolved:
        if answer.done():
            continue
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


def _copy_of(failure: PolicyFailure) -> PolicyFailure:
    """A copy of the failure for another caller, because an exception has only one traceback."""
    copy = PolicyFailure(str(failure), retryable=failure.retryable)
    copy.__cause__ = failure.__cause__
    return copy
