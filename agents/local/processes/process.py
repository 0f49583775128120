"""The policy's side of one sampling process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from agents.completion import Completion, SamplingParams
from agents.local.processes.messages import (
    Answer,
    Cancel,
    End,
    Failed,
    Generate,
    Load,
    Progress,
    Request,
    Start,
    receive,
    send,
)
from agents.policy import PolicyFailure

START_S = 300.0
"""Seconds that a process may take to import its packages and receive the model."""
_END_S = 10.0
"""Seconds that a process may take to end after it is killed."""
_LATE_S = 30.0
"""Seconds that the process may be silent beyond its own deadline. While it has work, it reports
several times a second, and it watches the deadlines of completions itself."""


class SamplingProcess:
    """A process that samples; see :mod:`agents.local.processes.server`.

    Only the event loop in which it is created may use it.

    Args:
        start: the model and the limits.
        memory: file descriptor of the shared weights.
    """

    module = "agents.local.processes"
    """The module that the process runs."""

    def __init__(self, start: Start, memory: int) -> None:
        self.steps = 0
        """Number of steps of the process's engine."""
        self._completion_s = start.completion_s
        self._loop = asyncio.get_running_loop()
        self._heard_at = time.monotonic() + START_S
        """Time of the last message. A process that starts may be silent for longer."""
        self._answers: dict[int, asyncio.Future[Completion | None]] = {}
        self._numbers = 0
        self._queued_s: dict[str, float] = {}
        self._over: PolicyFailure | None = None
        self._outgoing: queue.SimpleQueue[Start | Request | None] = queue.SimpleQueue()
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), memory)
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                # Ctrl-C is for the run, which ends the process when it needs it no longer.
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(start.num_threads),
                    # The packages of this process, also if they are not installed.
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        self._connection = Connection(ours.detach())
        self._outgoing.put(start)
        # Threads of their own, because the model and long prompts may not fit into the socket.
        for work in (self._write, self._read):
            threading.Thread(target=work, name="sampling-process", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None
    ) -> Completion:
        """Sample a completion; see :meth:`agents.policy.Policy.generate`."""
        number = self._next_number()
        message = Generate(number, array("q", prompt_ids), sampling, session)
        try:
            completion = await self._ask(message, self._completion_s + _LATE_S)
        except asyncio.CancelledError:
            self._outgoing.put(Cancel(number))
            raise
        assert completion is not None
        return completion

    async def load(self, version: int, deadline_s: float) -> None:
        """Load the weights that are in the shared memory.

        Raises:
            PolicyFailure: the process has ended, is silent for too long, or has other weights.
        """
        await self._ask(Load(self._next_number(), version), deadline_s)

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a row, as last reported."""
        return self._queued_s.get(session, 0.0)

    def end(self, session: str) -> None:
        """Release what the process keeps for an episode."""
        self._queued_s.pop(session, None)
        self._outgoing.put(End(session))

    async def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._fail(PolicyFailure("the policy is closed", retryable=False))
        self._outgoing.put(None)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _END_S)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _ask(self, message: Generate | Load, silence_s: float) -> Completion | None:
        """Send a request, and wait for its answer while the process reports."""
        if self._over is not None:
            raise self._over
        answer: asyncio.Future[Completion | None] = self._loop.create_future()
        self._answers[message.number] = answer
        self._outgoing.put(message)
        asked_at = time.monotonic()
        try:
            while not answer.done():
                left = max(asked_at, self._heard_at) + silence_s - time.monotonic()
                if left <= 0:
                    raise PolicyFailure(
                        f"sampling process {self.pid} did not answer, and reported nothing for "
                        f"{silence_s:.0f} s",
                        retryable=False,
                    )
                await asyncio.wait([answer], timeout=left)
            return answer.result()
        finally:
            self._answers.pop(message.number, None)

    def _take(self, answer: Answer) -> None:
        self._heard_at = time.monotonic()
        if isinstance(answer, Progress):
            self.steps, self._queued_s = answer.steps, dict(answer.queued_s)
            return
        waiting = self._answers.get(answer.number)
        if waiting is None or waiting.done():
            return  # the caller is gone
        if not isinstance(answer, Failed):
            waiting.set_result(answer.completion)
        elif answer.is_value_error:
            waiting.set_exception(ValueError(answer.error))
        else:
            waiting.set_exception(PolicyFailure(answer.error, retryable=answer.retryable))

    def _lost(self) -> None:
        code = self._process.poll()
        self._fail(
            PolicyFailure(
                f"sampling process {self.pid} ended (exit code {code}); its messages are "
                "above: start again with policy.processes=1 if the machine's memory is full",
                retryable=False,
            )
        )

    def _fail(self, failure: PolicyFailure) -> None:
        self._over = self._over or failure
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(self._over)

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                send(self._connection, message)
            except OSError:  # the process has ended, which the reader reports
                return
            except Exception as error:
                # Pickling runs the model's own code, which may raise anything.
                text = f"the model cannot be sent to a sampling process ({error}): "
                text += "start again with policy.processes=1"
                self._in_loop(self._fail, PolicyFailure(text, retryable=False))
                return

    def _read(self) -> None:
        while True:
            try:
                answer = receive(self._connection)
            except (EOFError, OSError):
                break
            self._in_loop(self._take, answer)
        self._process.wait()
        self._in_loop(self._lost)

    def _in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)
