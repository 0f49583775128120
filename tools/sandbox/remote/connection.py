"""A client's connection to a server, for sessions. A number matches each answer to its message."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine
from typing import Any

import aiohttp

from tools.sandbox.remote import wire


class ConnectionLost(ConnectionError):
    """Raised when the connection has ended. Its sessions have ended with it."""

    def __init__(self) -> None:
        super().__init__("the connection to the server is lost")


class Connection:
    """An open WebSocket, over which all sessions of a client, and their copies, are used."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.closed = False
        self._socket = socket
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[wire.Data]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read())

    def number(self) -> int:
        """A new number for a message, a session or a snapshot of this connection."""
        return next(self._numbers)

    async def ask(self, message: wire.Data) -> wire.Data:
        """Send a message and wait for its answer.

        If the caller is cancelled, the message is also cancelled on the server.

        Raises:
            ConnectionLost: the connection has ended.
        """
        number = self.number()
        answer: asyncio.Future[wire.Data] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            await self._send({**message, "number": number})
            return await answer
        except asyncio.CancelledError:
            self.notify({"op": "cancel", "number": number})
            raise
        finally:
            del self._pending[number]

    def notify(self, message: wire.Data) -> None:
        """Send a message without waiting. The message is dropped if the connection has ended."""
        self._start(self._notify(message))

    async def _notify(self, message: wire.Data) -> None:
        with contextlib.suppress(ConnectionLost):
            await self._send(message)

    async def _send(self, message: wire.Data) -> None:
        if self.closed:
            raise ConnectionLost
        try:
            await self._socket.send_bytes(wire.pack(message))
        except (aiohttp.ClientError, OSError):
            raise ConnectionLost from None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                data = wire.unpack(message.data)
                answer = self._pending.get(data.pop("number"))
                if answer is not None and not answer.done():
                    answer.set_result(data)
        finally:
            self.closed = True
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(ConnectionLost())

    async def close(self) -> None:
        """Close the connection; the server ends its sessions."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, *self._sending, return_exceptions=True)
