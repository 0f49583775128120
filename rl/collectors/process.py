"""A collector: a process that plays episodes for a run.

It is started as ``python -m rl.collectors.process FD``, where FD is one end of a socket pair, or by
Ray. It has its own event loop, environments with their services, and renderer, and samples from the
servers that the run's process manages (:mod:`agents.serving.sampling.guests`). It ends when the
connection closes, so no collector outlives its run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from agents.renderer import Renderer
from agents.serving.sampling.guests import GuestPolicy, ServerState
from rl.collectors.messages import CollectorSpec, PlaySettings, Report
from rl.errors import EXPECTED_ERRORS, UsageError
from rl.external.collector import make_collector
from rl.rollout.collector import Assignment, Collector
from rl.rollout.episode import seed_of
from rl.rollout.trajectory import Trajectory
from rl.run.metrics.service_metrics import healths_of
from rl.run.process.activity import Activities
from rl.run.process.closing import at_end
from rl.runtime.partner import open_partners
from rl.runtime.playing import Playing, open_services
from rl.settings.parsing.command_line import resolve

logger = logging.getLogger(__name__)
REPORT_S = 1.0
"""Seconds between two reports."""
_SHORTEST_S = 0.1
_MAX_WAITS = 20
_END_S = 10.0
"""Seconds within which the process ends after its connection has closed."""

Send = Callable[..., None]
"""Sends a call to the run's process: a name and arguments. It does not block."""


class CollectorProcess:
    """Does what the run's process asks; its public methods are called by name."""

    def __init__(self, spec: CollectorSpec, playing: Playing, send: Send) -> None:
        self._playing = playing
        self._send = send
        policy = playing.policy
        assert isinstance(policy, GuestPolicy)
        self._policy = policy
        self._collectors: dict[PlaySettings, Collector] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The tasks that play assignments, by the assignment's number."""
        self._numbers: dict[int, int] = {}
        """Numbers of assignments, by the environment's seed of their episodes."""
        self._others: set[asyncio.Task[None]] = set()
        self._holding: asyncio.Task[None] | None = None
        self._reported_at = 0.0

    def play(self, number: int, settings: PlaySettings, assignment: Assignment) -> None:
        """Play the episodes of an assignment."""
        self._numbers[seed_of(*assignment.seed_key)] = number
        self._tasks[number] = asyncio.create_task(self._play(number, settings, assignment))

    def cancel(self, number: int) -> None:
        """Stop playing an assignment."""
        if number in self._tasks:
            self._tasks[number].cancel()

    def restart_all(self) -> None:
        """Restart all episodes that can restart."""
        self._playing.activities.restart_all()

    def set_server(self, index: int, state: ServerState) -> None:
        """Continue with a new state of a server."""
        self._policy.update_server(index, state)

    def set_version(self, version: int) -> None:
        """Continue with a new version of the weights."""
        self._policy.update_version(version)

    def hold(self) -> None:
        """Answer as soon as none of the requests runs. New ones wait until :meth:`release`."""
        self._holding = self._spawn(self._hold())

    def release(self) -> None:
        """Let new requests run again."""
        if self._holding is not None:
            self._holding.cancel()  # The run may not have waited for the answer.
        self._spawn(self._policy.release())

    def ask_health(self, number: int) -> None:
        """Answer with the counters of the services."""
        self._spawn(self._answer_health(number))

    def report(self) -> None:
        """Report where the time goes, what waits, and what the policy must know."""
        self._reported_at = time.monotonic()
        activities = self._playing.activities
        waits, restartable = activities.waits()[:_MAX_WAITS], activities.num_restartable()
        report = Report(activities.take(), waits, restartable, self._policy.report())
        self._send("report", report)

    async def keep_reporting(self) -> None:
        """Report regularly, until cancelled."""
        while True:
            self.report()
            await asyncio.sleep(REPORT_S)

    async def end(self) -> None:
        """Stop playing."""
        tasks = [*self._tasks.values(), *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, number: int, settings: PlaySettings, assignment: Assignment) -> None:
        try:
            (trajectories,) = await self._collector(settings).play([assignment])
        except EXPECTED_ERRORS as error:
            self._send("failed", number, str(error))
        except Exception as error:
            traceback.print_exc()
            self._send("failed", number, f"{type(error).__name__}: {error}")
        else:
            if time.monotonic() - self._reported_at > _SHORTEST_S:
                self.report()  # The time of the last episodes counts to their step.
            # Without values of turns, each episode was sent at its end.
            self._send("played", number, trajectories if settings.vine is not None else [])
        finally:
            del self._tasks[number]
            seed = seed_of(*assignment.seed_key)
            # Another assignment has it if this one was cancelled and is played again.
            if self._numbers.get(seed) == number:
                del self._numbers[seed]

    def _collector(self, settings: PlaySettings) -> Collector:
        if settings not in self._collectors:
            context = self._playing.context(settings.split, settings.sampling)
            if settings.vine is None:
                context.on_played = self._ended
            self._collectors[settings] = make_collector(context, settings.vine)
        return self._collectors[settings]

    def _ended(self, task: int, member: int, trajectory: Trajectory) -> None:
        number = self._numbers.get(trajectory.seed)
        if number is not None:
            self._send("ended", number, member, trajectory)

    async def _hold(self) -> None:
        failure = ""
        try:
            await self._policy.hold()
        except EXPECTED_ERRORS as error:
            failure = str(error)
        self._send("held", failure)

    async def _answer_health(self, number: int) -> None:
        self._send("health", number, await healths_of(self._playing.services))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def done(task: asyncio.Task[None]) -> None:
            self._others.discard(task)
            if not task.cancelled() and task.exception() is not None:
                logger.error("a collector failed", exc_info=task.exception())

        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(done)
        return task


async def _opened(spec: CollectorSpec, send: Send, stack: AsyncExitStack) -> CollectorProcess:
    """Open the environment's services, and what else episodes need. ``stack`` closes them."""
    os.environ.update(spec.environment)
    try:
        config = resolve(spec.config_type, {"the run's settings": spec.settings})
    except UsageError as error:
        raise UsageError(
            f"{error}; collectors do not know what was registered in the run's process alone: give "
            "env=FILE.py:CLASS, install the plug-in, or give collectors=1"
        ) from error
    activities = Activities()
    services = await open_services(config, stack, activities, spec.sandboxes)
    policy = GuestPolicy(
        spec.guest,
        spec.number,
        spec.size,
        lambda index, generation, error: send("complain", index, generation, error),
    )
    closes = at_end(policy.close, "the policy", activities, config.close_s)
    await stack.enter_async_context(closes)
    policy.account(activities.lane)
    shared = (None, activities, stack, lambda line: None)
    playing = Playing(
        config=config,
        services=services,
        policy=policy,
        renderer=Renderer(spec.tokenizer, spec.end_token_ids),
        partners=await open_partners(config, "", *shared),
        activities=activities,
        context_window=spec.context_window,
    )
    return CollectorProcess(spec, playing, send)


async def _serve(calls: asyncio.Queue[Any], send: Send) -> None:
    """Do what is asked until the connection closes."""
    _, (spec,) = await calls.get()
    async with AsyncExitStack() as stack:
        try:
            collector = await _opened(spec, send, stack)
        except EXPECTED_ERRORS as error:
            send("refused", str(error))
            return
        stack.push_async_callback(collector.end)
        send("opened")
        reporting = asyncio.create_task(collector.keep_reporting())
        stack.callback(reporting.cancel)
        while (call := await calls.get()) is not None:
            name, args = call
            getattr(collector, name)(*args)


class _ToRun(logging.Handler):
    """Sends warnings to the run's process, which logs them."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._to_run = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self._to_run("log", record.name, record.levelno, self.format(record))


def serve(connection: Connection[Any, Any]) -> None:
    """Answer calls until the connection closes, which ends this process."""
    outgoing: SimpleQueue[bytes | None] = SimpleQueue()

    def send(name: str, *args: Any) -> None:
        # Here, where a value that cannot be sent raises.
        outgoing.put(pickle.dumps((name, args)))

    def write() -> None:
        with suppress(OSError):  # The reader sees the end of the connection.
            while (message := outgoing.get()) is not None:
                connection.send_bytes(message)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    logging.getLogger().addHandler(_ToRun(send))
    asyncio.run(_connected(connection, send))
    # What was said last, such as why the collector was refused.
    outgoing.put(None)
    writer.join(_END_S)
    # Threads of an environment may go on; nothing waits for them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _connected(connection: Connection[Any, Any], send: Send) -> None:
    loop, calls = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def read() -> None:
        try:
            while True:
                call = pickle.loads(connection.recv_bytes())
                loop.call_soon_threadsafe(calls.put_nowait, call)
        except (EOFError, OSError, RuntimeError):
            # Whatever the event loop does.
            threading.Timer(_END_S, os._exit, [1]).start()
            with suppress(RuntimeError):  # The loop has ended already.
                loop.call_soon_threadsafe(calls.put_nowait, None)
        except BaseException:
            # A call that cannot be read, for example because a plug-in is not installed here.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    await _serve(calls, send)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
