"""A client's connection to a server for its sessions: questions by number, answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine
from typing import Any

import aiohttp

from tools.sandbox.remote import wire


class LineLost(ConnectionError):
    """Raised when the connection has ended: the sessions that it carried are over."""

    def __init__(self) -> None:
        super().__init__("the connection to the server is lost")


class Line:
    """An open WebSocket. Every session of a client, with its copies, is on one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.closed = False
        self._socket = socket
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[wire.Data]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read())

    def number(self) -> int:
        """One that nothing on this line has: for a message, a session, a snapshot."""
        return next(self._numbers)

    async def ask(self, message: wire.Data) -> wire.Data:
        """Send a message and wait for its answer; cancelling cancels it on the server.

        Raises:
            LineLost: no answer will come.
        """
        number = self.number()
        answer: asyncio.Future[wire.Data] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            await self._send({**message, "number": number})
            return await answer
        except asyncio.CancelledError:
            self.tell({"op": "cancel", "number": number})
            raise
        finally:
            del self._asked[number]

    def tell(self, message: wire.Data) -> None:
        """Send a message without waiting; where the line is lost it says nothing new."""
        self._start(self._tell(message))

    async def _tell(self, message: wire.Data) -> None:
        with contextlib.suppress(LineLost):
            await self._send(message)

    async def _send(self, message: wire.Data) -> None:
        if self.closed:
            raise LineLost
        try:
            await self._socket.send_bytes(wire.pack(message))
        except (aiohttp.ClientError, OSError):
            raise LineLost from None

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
                answer = self._asked.get(data.pop("number"))
                if answer is not None and not answer.done():
                    answer.set_result(data)
        finally:
            self.closed = True
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(LineLost())

    async def close(self) -> None:
        """End the connection; the server ends everything that it carried."""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, *self._sending, return_exceptions=True)
