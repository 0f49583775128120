"""The sessions of one client on a server. They end with the client's connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

from tools.owner import acting_for
from tools.sandbox.errors import SandboxBusy, SessionOver
from tools.sandbox.host.reading import Clock
from tools.sandbox.remote import wire
from tools.sandbox.remote.admission import ClientShare
from tools.sandbox.sandbox import Sandbox
from tools.sandbox.session import Session, Snapshot

_MAX_KEPT = 4096
"""Maximum number of sessions and snapshots on one connection, including ended ones."""
_MAX_VALUES = 20_000
"""Maximum number of values in a message about a session. Files and their paths are values, too."""
_MAX_PENDING = 4 * _MAX_KEPT
"""Maximum number of unanswered messages on one connection. One more closes the connection."""
_ENDINGS = ("close", "drop")

_log = logging.getLogger(__name__)


class HostedSessions:
    """The sessions and snapshots of one client's connection. The client numbers them.

    Args:
        sandbox: the sandbox of the sessions.
        share: limits what the client has open.
        send: sends an answer.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        share: ClientShare,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._sandbox = sandbox
        self._share = share
        self._send = send
        self._sessions: dict[int, Session] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._making: set[int] = set()
        self._pending: dict[int, asyncio.Task[None]] = {}

    async def handle(self, body: bytes) -> None:
        """Decode a message and start a task that executes it and sends the answer.

        Raises:
            WireError: the message is invalid, or too many messages are unanswered.
        """
        reader = self._sandbox.executor.reader
        message = await reader.read(len(body), lambda: wire.unpack(body, _MAX_VALUES), Clock())
        match message:
            case {"op": "cancel", "number": int(number)}:
                if number in self._pending:
                    self._pending[number].cancel()
            case {"op": str(), "number": int(number), "owner": str()} if (
                number not in self._pending
            ):
                if len(self._pending) >= _MAX_PENDING:
                    raise wire.WireError(
                        f"more than {_MAX_PENDING} messages wait for their answers"
                    )
                task = asyncio.create_task(self._answer(number, message, len(body)))
                self._pending[number] = task
                task.add_done_callback(lambda _: self._pending.pop(number))
            case _:
                raise wire.WireError("a message has an op, a new number and an owner")

    async def _answer(self, number: int, message: wire.Data, size: int) -> None:
        try:
            held = self._share.hold if message["op"] in _ENDINGS else self._share.take
            with acting_for(message["owner"]), held(size):
                answer = await self._execute(message)
        except wire.KNOWN_ERRORS as error:
            _, answer = wire.write_error(error)
        except Exception as error:
            _log.exception("a session's %s failed", message["op"])
            _, answer = wire.write_error(
                self._sandbox.executor.failure(f"the server failed: {error!r}")
            )
        with contextlib.suppress(ConnectionError):  # the client is gone
            await self._send(wire.pack({**answer, "number": number}))

    async def _execute(self, message: wire.Data) -> wire.Data:
        match message:
            case {"op": "start", "session": int(name), "settings": dict(settings)}:
                await self._start(name, settings)
                return {}
            case {"op": "drop", "snapshot": int(name)}:
                if snapshot := self._snapshots.get(name):
                    await snapshot.close()
                    self._snapshots.pop(name, None)
                return {}
            case {"op": "close", "session": int(name)}:
                # Removed after it is closed: the client's end may cancel this.
                if session := self._sessions.get(name):
                    await session.close()
                    self._sessions.pop(name, None)
                return {}
            case {"op": str(), "session": int(name)}:
                session = self._sessions.get(name)
                if session is None:
                    raise SessionOver("the session is over: it was closed")
                return {**await self._use(session, message), "over": session.over}
        raise wire.WireError(f"op {message['op']!r:.40} is not known, or lacks something")

    async def _use(self, session: Session, message: wire.Data) -> wire.Data:
        match message:
            case {"op": "run", "code": str(code), "wall_s": None | int() | float() as wall_s}:
                result = await session.run(code, wall_s=wall_s)
                return {"result": wire.fields_of(result)}
            case {"op": "fork", "twin": int(name)}:
                with self._reserved(name):
                    self._sessions[name] = await session.fork()
            case {"op": "snapshot", "snapshot": int(name)}:
                with self._reserved(name):
                    self._snapshots[name] = await session.snapshot()
            case {"op": "restore", "snapshot": int(name)}:
                snapshot = self._snapshots.get(name)
                if snapshot is None:
                    raise SessionOver("there is nothing to restore: the snapshot was closed")
                await session.restore(snapshot)
            case _:
                raise wire.WireError(f"op {message['op']!r:.40} is not known, or lacks something")
        return {}

    async def _start(self, name: int, settings: dict[Any, Any]) -> None:
        match settings:
            case {
                "files": dict(files),
                "limits": dict(limits),
                "idle_s": int() | float() as idle_s,
                "life_s": int() | float() as life_s,
            }:
                session = self._sandbox.session(
                    wire.read_files(files),
                    wire.read_requested_limits(limits),
                    idle_s=idle_s,
                    life_s=life_s,
                    permits=self._share.permits,
                )
            case _:
                raise wire.WireError("settings: files, limits, idle_s and life_s")
        with self._reserved(name):
            await session.start()
            session.drop_files()  # the client sends them again for a restart
            self._sessions[name] = session

    @contextlib.contextmanager
    def _reserved(self, name: int) -> Iterator[None]:
        """Reserve the number ``name`` while a session or snapshot with this number is created.

        Otherwise, if two had the same number, one of them would never be closed.
        """
        kept: tuple[Collection[int], ...] = (self._sessions, self._snapshots, self._making)
        if any(name in group for group in kept):
            raise wire.WireError(f"number {name} is taken")
        if sum(len(group) for group in kept) >= _MAX_KEPT:
            raise SandboxBusy(f"this connection has {_MAX_KEPT} sessions and snapshots: close some")
        self._making.add(name)
        try:
            yield
        finally:
            self._making.remove(name)

    async def close(self) -> None:
        """Cancel the client's messages and close its sessions and snapshots."""
        pending = list(self._pending.values())
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        sessions, self._sessions = self._sessions, {}
        snapshots, self._snapshots = self._snapshots, {}
        await asyncio.gather(
            *(session.close() for session in sessions.values()),
            *(snapshot.close() for snapshot in snapshots.values()),
        )
