"""One collector, as the run's process sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from agents.policy import PolicyFailure
from agents.serving.errors import Unreachable
from agents.serving.sampling.guests import GuestReport, ServerState
from rl.cluster.child import ChildProcess, end_connection
from rl.collectors.messages import CollectorSpec, PlaySettings, Report
from rl.errors import RunFailure, UsageError
from rl.rollout.collector import Assignment
from rl.rollout.trajectory import Trajectory
from rl.run.process.activity import Waiting
from tools.sandbox.health import Health

OnEnded = Callable[[int, Trajectory], None]
"""Called at the end of an episode, with its member and its record."""
CLOSE_S = 15.0
"""Seconds within which a collector's threads end after its process."""


class CollectorLost(RunFailure):
    """Raised when a collector's process ended while it played. It is no failure of an episode.

    Attributes:
        ended: the episodes that had ended before, by member.
    """

    def __init__(self, message: str, ended: Mapping[int, Trajectory]) -> None:
        super().__init__(message)
        self.ended = ended


class Host(Protocol):
    """Receives what a collector reports of servers and of itself."""

    def guest_reported(self, guest: CollectorHandle, report: GuestReport) -> None:
        """Take note of a report for the policy."""
        ...

    def guest_complained(self, index: int, generation: int, error: Unreachable) -> None:
        """Check a server that failed the collector."""
        ...


@dataclass(slots=True)
class _Playing:
    """An assignment in progress."""

    future: asyncio.Future[list[Trajectory]]
    on_ended: OnEnded
    members: tuple[int, ...]
    ended: dict[int, Trajectory] = field(default_factory=dict)


class CollectorHandle:
    """A started collector, and the connection to it.

    It is a guest of the policy; see :class:`agents.serving.sampling.guests.Guest`. Create it on the
    event loop.

    Args:
        child: the process.
        host: receives what the collector reports of servers.
        on_lost: called when the process has ended, unless :meth:`close` ended it.
    """

    def __init__(
        self, child: ChildProcess, host: Host, on_lost: Callable[[CollectorHandle], None]
    ) -> None:
        self.child = child
        self.lost = ""
        """How the process ended, or empty while it runs."""
        self.num_ended = 0
        """Number of episodes that ended."""
        self.heard_at = time.monotonic()
        """When the collector sent something last."""
        self.seconds: Counter[str] = Counter()
        """Seconds by lane and state that were reported and not taken."""
        self.waits: list[Waiting] = []
        """The activities that waited for longest at the last report."""
        self.num_restartable = 0
        """Number of activities that could restart at the last report."""
        self._host = host
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._playing: dict[int, _Playing] = {}
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._held: asyncio.Future[str] | None = None
        self._healths: dict[int, asyncio.Future[Mapping[str, Health]]] = {}
        self._closed = False
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_playing(self) -> int:
        """Number of episodes in progress."""
        return sum(len(p.members) - len(p.ended) for p in self._playing.values())

    async def open(self, spec: CollectorSpec, within_s: float) -> None:
        """Let the collector open its environment, and wait until it can play.

        Raises:
            UsageError: the environment or a setting is refused.
            CollectorLost: the process ended, or was not ready in time.
        """
        self._send("open", spec)
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._opened)
        except TimeoutError as error:
            name = f"collector {self.child.number}"
            raise CollectorLost(f"{name} was not ready within {within_s:g} s", {}) from error

    async def play(
        self, settings: PlaySettings, assignment: Assignment, on_ended: OnEnded
    ) -> list[Trajectory]:
        """Play the episodes of an assignment, and return them in the order of its members.

        Args:
            settings: how they are played.
            assignment: the episodes.
            on_ended: called at the end of each episode or, with values of turns, of all.

        Raises:
            CollectorLost: the process ended.
            RunFailure: the collector cannot play.
        """
        if self.lost:
            raise CollectorLost(self.lost, {})
        number = next(self._numbers)
        future: asyncio.Future[list[Trajectory]] = self._loop.create_future()
        self._playing[number] = _Playing(future, on_ended, assignment.members)
        self._send("play", number, settings, assignment)
        try:
            return await future
        except asyncio.CancelledError:
            self._send("cancel", number)
            raise
        finally:
            del self._playing[number]

    async def health(self, within_s: float) -> Mapping[str, Health]:
        """The counters of the collector's services; none if it does not answer in time."""
        number = next(self._numbers)
        future: asyncio.Future[Mapping[str, Health]] = self._loop.create_future()
        self._healths[number] = future
        self._send("ask_health", number)
        try:
            async with asyncio.timeout(within_s):
                return await future
        except TimeoutError:
            return {}
        finally:
            del self._healths[number]

    def restart_all(self) -> None:
        """Restart all episodes that can restart."""
        self._send("restart_all")

    def set_server(self, index: int, state: ServerState) -> None:
        """Send the state of a server."""
        self._send("set_server", index, state)

    def set_version(self, version: int) -> None:
        """Send the version of the weights."""
        self._send("set_version", version)

    async def hold(self) -> None:
        """Wait until none of the collector's requests runs; new ones wait.

        Raises:
            PolicyFailure: its requests did not end in time.
        """
        if self.lost:
            return
        self._held = self._loop.create_future()
        self._send("hold")
        if failure := await self._held:
            raise PolicyFailure(f"collector {self.child.number}: {failure}", retryable=True)

    def release(self) -> None:
        """Let new requests run again."""
        self._send("release")

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        self._outgoing.put(None)
        await asyncio.to_thread(self.child.wait)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, CLOSE_S)

    def _send(self, name: str, *args: Any) -> None:
        # Here, where a value that cannot be sent raises.
        self._outgoing.put(pickle.dumps((name, args)))

    def _write(self) -> None:
        """Send calls; runs in a thread, because a process that hangs reads nothing."""
        connection = self.child.connection
        try:
            while (call := self._outgoing.get()) is not None:
                connection.send_bytes(call)
        except OSError:
            return  # The reader sees the end of the connection.
        end_connection(connection, socket.SHUT_WR)

    def _read(self) -> None:
        """Take what the collector sends; runs in a thread."""
        unreadable = ""
        try:
            while True:
                name, args = pickle.loads(self.child.connection.recv_bytes())
                self._on_loop(self._take, name, args)
        except (EOFError, OSError):
            self.child.wait()
        except Exception as error:
            # For example an observation of a type that only the collector can import.
            unreadable = f"collector {self.child.number} sent what cannot be read: {error!r}"
            self.child.kill()
            self.child.wait()
        self._on_loop(self._end, unreadable or self.child.epitaph())

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop. Without the loop, no call waits for it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    def _take(self, name: str, args: tuple[Any, ...]) -> None:
        self.heard_at = time.monotonic()
        getattr(self, f"_on_{name}")(*args)

    def _on_opened(self) -> None:
        self._opened.set_result(None)

    def _on_refused(self, why: str) -> None:
        self._opened.set_exception(UsageError(f"collectors: {why}"))

    def _on_ended(self, number: int, member: int, trajectory: Trajectory) -> None:
        self.num_ended += 1
        playing = self._playing.get(number)
        if playing is not None and member not in playing.ended:
            playing.ended[member] = trajectory
            playing.on_ended(member, trajectory)

    def _on_played(self, number: int, trajectories: list[Trajectory]) -> None:
        playing = self._playing.get(number)
        if playing is not None and not playing.future.done():
            for member, trajectory in zip(playing.members, trajectories, strict=False):
                self._on_ended(number, member, trajectory)
            playing.future.set_result([playing.ended[member] for member in playing.members])

    def _on_failed(self, number: int, why: str) -> None:
        playing = self._playing.get(number)
        if playing is not None and not playing.future.done():
            playing.future.set_exception(RunFailure(f"collector {self.child.number}: {why}"))

    def _on_complain(self, index: int, generation: int, error: Unreachable) -> None:
        self._host.guest_complained(index, generation, error)

    def _on_held(self, failure: str) -> None:
        if self._held is not None and not self._held.done():
            self._held.set_result(failure)

    def _on_health(self, number: int, found: Mapping[str, Health]) -> None:
        if number in self._healths and not self._healths[number].done():
            self._healths[number].set_result(found)

    def _on_report(self, report: Report) -> None:
        self.seconds.update(report.seconds)
        self.waits, self.num_restartable = list(report.waits), report.num_restartable
        self._host.guest_reported(self, report.guest)

    def _on_log(self, name: str, level: int, text: str) -> None:
        logging.getLogger(name).log(level, "%s", text)

    def _end(self, epitaph: str) -> None:
        """Fail everything that waits for the process."""
        self.lost, self.waits, self.num_restartable = epitaph, [], 0
        if not self._opened.done():
            self._opened.set_exception(CollectorLost(epitaph, {}))
            self._opened.exception()  # Perhaps no call waits for it any more.
        for playing in self._playing.values():
            if not playing.future.done():
                playing.future.set_exception(CollectorLost(epitaph, playing.ended))
        if self._held is not None and not self._held.done():
            self._held.set_result("")
        for health in self._healths.values():
            if not health.done():
                health.set_result({})
        if not self._closed:
            self._on_lost(self)
