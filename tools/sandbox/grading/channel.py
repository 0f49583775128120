"""The host's end of a channel that carries values to and from an untrusted process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

from tools.sandbox.inside import codec

_CHUNK = 1 << 16
_LENGTH = struct.Struct("!I")


class ChannelClosed(Exception):
    """Raised when the process has closed its end of the channel."""


class Channel:
    """Length-prefixed messages to and from one untrusted process, over a non-blocking socket.

    The event loop watches the socket all the time, which is cheaper than registering it for each
    message. The channel buffers at most one frame that was not requested yet.
    """

    def __init__(self) -> None:
        self._mine, self.theirs = socket.socketpair()
        """The host's end of the channel; and ``theirs``, the process's end, which is sent with the
        job."""
        self._mine.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self.last_received = 0.0
        """Monotonic time of the last received bytes."""
        self._ended = False
        self._arrived: asyncio.Future[None] | None = None
        self._listening = True
        self._loop.add_reader(self._mine, self._on_readable)

    async def send(self, frame: bytes) -> None:
        """Send one message that ``codec.pack`` made.

        Raises:
            ChannelClosed: the other end is closed.
        """
        try:
            with contextlib.suppress(BlockingIOError):
                frame = frame[self._mine.send(frame) :]
            if frame:
                await self._loop.sock_sendall(self._mine, frame)
        except OSError:
            raise ChannelClosed from None

    async def receive(self) -> bytes:
        """Wait for the next message and return its frame, not decoded.

        Raises:
            ChannelClosed: the other end is closed.
            CodecError: the message is too large.
        """
        while (frame := self._take()) is None:
            if self._ended:
                raise ChannelClosed
            self._arrived = self._loop.create_future()
            await self._arrived
        return frame

    def _take(self) -> bytes | None:
        """Remove and return the first received frame, or None while it is incomplete."""
        inbox = self._inbox
        if len(inbox) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(inbox)
        if length > codec.MAX_FRAME:
            raise codec.CodecError(f"a frame of {length} bytes exceeds {codec.MAX_FRAME}")
        end = _LENGTH.size + length
        if len(inbox) < end:
            return None
        frame = bytes(memoryview(inbox)[_LENGTH.size : end])
        del inbox[:end]
        if not self._listening and not self._ended:
            self._listening = True
            self._loop.add_reader(self._mine, self._on_readable)
        return frame

    def _on_readable(self) -> None:
        try:
            data = self._mine.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.last_received = time.monotonic()
        self._inbox += data
        self._ended = not data
        if self._ended or len(self._inbox) >= _LENGTH.size + codec.MAX_FRAME:
            self._ignore()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _ignore(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._mine)

    @property
    def unread(self) -> bool:
        """Whether bytes have arrived that no ``receive`` took.

        An honest process sends only answers.
        """
        return bool(self._inbox)

    def close(self) -> None:
        """Close both ends."""
        self._ended = True
        self._ignore()
        self._mine.close()
        self.theirs.close()
