"""The sampling process: answers the messages of one socket with a :class:`LocalPolicy`."""

from __future__ import annotations

import asyncio
import os
import threading
from multiprocessing.connection import Connection

from agents.completion import Completion
from agents.local.policy import Limits, LocalPolicy
from agents.local.processes import shared_weights
from agents.local.processes.messages import (
    Answer,
    Cancel,
    Done,
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

_REPORT_S = 0.2
"""Seconds between two messages of progress."""


def serve(socket: int, memory: int) -> None:
    """Answer the messages of ``socket`` until it is closed.

    Args:
        socket: file descriptor of a connection to the policy.
        memory: file descriptor of the shared weights.
    """
    connection = Connection(socket)
    start = receive(connection)
    assert isinstance(start, Start)
    server = _Server(connection, start, memory)
    asyncio.run(server.run())


class _Server:
    def __init__(self, connection: Connection, start: Start, memory: int) -> None:
        self._connection = connection
        self._weights = shared_weights.tensors(memory, start.layout)
        limits = Limits(
            context_window=start.context_window,
            cache_bytes=start.cache_bytes,
            completion_s=start.completion_s,
            num_threads=start.num_threads,
            cores=start.num_threads,
        )
        self._policy = LocalPolicy(
            *(start.model, start.tokenizer),
            max_slots=start.max_slots,
            seed=start.seed,
            limits=limits,
            shares_weights=False,
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sessions: set[str] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                try:
                    message = receive(self._connection)
                except (EOFError, OSError):
                    # The policy is closed, or its process has ended: there is nothing to save.
                    os._exit(0)
                loop.call_soon_threadsafe(self._take, message)

        threading.Thread(target=read, daemon=True).start()
        while True:
            await asyncio.sleep(_REPORT_S)
            if self._tasks:
                queued_s = {name: self._policy.queued_s(name) for name in self._sessions}
                self._send(Progress(self._policy.stats().num_steps, queued_s))

    def _take(self, message: Request) -> None:
        if isinstance(message, Cancel):
            if message.number in self._tasks:
                self._tasks[message.number].cancel()
        elif isinstance(message, End):
            self._sessions.discard(message.session)
            self._policy.end(message.session)
        else:
            task = asyncio.ensure_future(self._answer(message))
            self._tasks[message.number] = task
            task.add_done_callback(lambda _: self._tasks.pop(message.number))

    async def _answer(self, message: Generate | Load) -> None:
        try:
            if isinstance(message, Load):
                await self._policy.load_weights(self._weights, message.version)
                self._send(Done(message.number))
            else:
                self._send(Done(message.number, await self._generate(message)))
        except PolicyFailure as error:
            self._send(Failed(message.number, str(error), retryable=error.retryable))
        except ValueError as error:
            self._send(Failed(message.number, str(error), is_value_error=True))
        except Exception as error:
            # Otherwise the caller would wait while the process reports its other work.
            self._send(Failed(message.number, f"{type(error).__name__}: {error}"))

    async def _generate(self, message: Generate) -> Completion:
        if message.session is not None:
            self._sessions.add(message.session)
        prompt = message.prompt_ids.tolist()
        return await self._policy.generate(prompt, message.sampling, message.session)

    def _send(self, answer: Answer) -> None:
        send(self._connection, answer)
