"""The judge's end of a channel of values: frames on a non-blocking socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from tools.sandbox.inside import codec

_CHUNK = 1 << 16


class ChannelClosed(Exception):
    """Raised when the other end is gone."""


class Channel:
    """Messages to and from one process inside. What arrives is not trusted."""

    def __init__(self) -> None:
        self._mine, self.theirs = socket.socketpair()
        """``theirs`` travels to the process with the job."""
        self._mine.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def send(self, message: Any) -> None:
        """Send one message.

        Raises:
            ChannelClosed: nobody reads it.
            CodecError: it is too large.
        """
        frame = codec.pack(message)
        try:
            await self._loop.sock_sendall(self._mine, frame)
        except OSError:
            raise ChannelClosed from None

    async def receive(self) -> Any:
        """The next message.

        Raises:
            ChannelClosed: no more will come.
            CodecError: what came is no message, or too large.
        """
        (length,) = struct.unpack("!I", await self._take(4))
        if length > codec.MAX_FRAME:
            raise codec.CodecError(f"a frame of {length} bytes exceeds {codec.MAX_FRAME}")
        return codec.unpack(await self._take(length))

    async def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                data = await self._loop.sock_recv(self._mine, _CHUNK)
            except OSError:
                raise ChannelClosed from None
            if not data:
                raise ChannelClosed
            self._received += data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    @property
    def unread(self) -> bool:
        """Whether more arrived than was asked for: an honest process sends only answers."""
        return bool(self._received)

    def close(self) -> None:
        """Close both ends that this process holds."""
        self._mine.close()
        self.theirs.close()
