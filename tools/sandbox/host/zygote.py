"""Starts, uses and ends a zygote: a process with a loaded interpreter that forks supervisors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import struct

from tools.sandbox.backends.launcher import Launcher
from tools.sandbox.host.job import Reply, Request
from tools.sandbox.host.reading import Clock
from tools.sandbox.inside import frames
from tools.sandbox.limits import Limits

GRACE_S = 10.0
"""Seconds that the host waits for a reply after a run's time limit. Then the sandbox counts as
broken."""
_STDERR_KEPT = 2000
_CLEARING_TRIES = 250

_log = logging.getLogger(__name__)


class LostError(Exception):
    """Raised when a supervisor is gone or silent, so that the result of its run is unknown."""


class RefusedError(LostError):
    """Raised when a zygote takes no job or does not start. The job has therefore not started."""


class Zygote:
    """One zygote process. It keeps a number of supervisors ready for jobs."""

    def __init__(self, launcher: Launcher, limits: Limits, idle: int) -> None:
        self.served = 0
        self.running = 0
        self._launcher = launcher
        self.dead = False
        self.spent = False
        """Whether the zygote lost or refused a job. The next job then uses another zygote."""
        self._loop = asyncio.get_running_loop()
        # Sequenced packets: each message goes whole to one of the waiting supervisors.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._errors, their_errors = os.pipe()
        os.set_blocking(self._errors, False)
        os.set_blocking(their_errors, False)  # a full pipe must not block a supervisor
        try:
            self._process = launcher.launch(limits, idle, theirs.fileno(), their_errors)
        except BaseException:
            self._control.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(their_errors)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._closing: asyncio.Task[None] | None = None
        self._cleared: bool | None = None  # None before the zygote's resources are released
        self._ended = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._on_end)

    async def start(self) -> None:
        """Wait until the zygote has a confined process that is ready for a job.

        Raises:
            LostError: the zygote did not become ready; the message quotes its standard error.
        """
        try:
            async with asyncio.timeout(self._launcher.start_s):
                message = await self._loop.sock_recv(self._control, 16)
        except (TimeoutError, ConnectionError) as error:
            raise LostError(f"no answer: {error!r}; {self.read_stderr()}") from None
        if message != b"ready":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._launcher.start_s):
                    await asyncio.shield(self._ended)
            raise LostError(self.read_stderr())
        self._launcher.started(self._process.pid)

    def read_stderr(self) -> str:
        """The end of the standard error of the zygote and its supervisors."""
        try:
            data = os.read(self._errors, 1 << 16)
        except BlockingIOError:
            data = b""
        lines = dict.fromkeys(data.decode(errors="replace").strip().splitlines())  # once each
        return "\n".join(lines)[-_STDERR_KEPT:] or "no message"

    async def run(
        self, request: Request, channel: socket.socket | None, clock: Clock | None = None
    ) -> Reply:
        """Run one job. Cancelling kills the run.

        Args:
            request: the job.
            channel: the program's end of a channel of values, or None for a job without a channel.
            clock: extends the run's deadline by the time that the host itself uses, or None.

        Raises:
            RefusedError: the zygote had ended.
            LostError: there was no reply, because the sandbox broke or the whole machine stalls.
        """
        mine = self.connect(*([channel.fileno()] if channel is not None else []))
        try:
            async with asyncio.timeout(request.limits.wall_s + GRACE_S) as limit:
                await self._loop.sock_sendall(mine, request.encode())
                if clock is not None:
                    clock.bind(functools.partial(_give, mine, limit))
                return await self._receive(mine)
        except (OSError, EOFError) as error:  # TimeoutError is one
            self.spent = True
            raise LostError(f"{type(error).__name__}: {error}; {self.read_stderr()}") from None
        finally:
            if clock is not None:
                clock.bind(None)
            self.disconnect(mine)

    def connect(self, *passed: int) -> socket.socket:
        """Open a stream to a waiting supervisor, which also gets the descriptors ``passed``.

        Raises:
            RefusedError: the zygote had ended.
            LostError: the zygote cannot be reached.
        """
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        try:
            socket.send_fds(self._control, [b"job"], [theirs.fileno(), *passed])
        except OSError as error:
            mine.close()
            if isinstance(error, ConnectionError):
                self.spent = True
                raise RefusedError(self.read_stderr()) from None
            raise LostError(f"{type(error).__name__}: {error}; {self.read_stderr()}") from None
        finally:
            theirs.close()
        self.served += 1
        self.running += 1
        return mine

    def disconnect(self, stream: socket.socket) -> None:
        """Close a stream. Its supervisor then kills the run if it is unfinished."""
        stream.close()
        self.running -= 1

    async def _receive(self, sock: socket.socket) -> Reply:
        (length,) = struct.unpack("!I", await self._exactly(sock, 4))
        head = json.loads(await self._exactly(sock, length))
        stdout = await self._exactly(sock, head["sizes"][0])
        stderr = await self._exactly(sock, head["sizes"][1])
        sizes = head.get("files", {})
        return Reply(
            head, stdout, stderr, {p: await self._exactly(sock, n) for p, n in sizes.items()}
        )

    async def _exactly(self, sock: socket.socket, count: int) -> bytes:
        parts = []
        while count:
            part = await self._loop.sock_recv(sock, min(count, 1 << 18))
            if not part:
                raise EOFError("the supervisor is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._reap()
        if not self._ended.done():
            self._ended.set_result(None)

    def _reap(self) -> None:
        # A killed launcher may leave a child that waits for it. The group's number stays reserved
        # until the launcher is reaped.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.dead = True

    def close(self) -> asyncio.Future[None]:
        """Close the control socket, which ends all processes of the zygote, and wait for their end.

        Closing continues if the caller is cancelled, who may then call ``close`` again.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
            # The end of the event loop may cancel the task before it begins.
            self._closing.add_done_callback(lambda _: self._release())
        return asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._control.close()
        try:
            async with asyncio.timeout(GRACE_S):
                await asyncio.shield(self._ended)
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            await self._ended
        finally:
            self._release()
        for _ in range(_CLEARING_TRIES):
            if self._cleared:
                return
            await asyncio.sleep(0.02)
            self._cleared = self._launcher.cleared(self._process.pid)
        _log.warning("sandbox: a run left files that could not be removed")

    def _release(self) -> None:
        """Release what belongs to the zygote, which is killed if it lives. Twice is harmless."""
        if self._cleared is not None:
            return
        self._control.close()
        if not self.dead:  # the event loop is ending
            self._loop.remove_reader(self._pidfd)
            self._reap()
        os.close(self._pidfd)
        os.close(self._errors)
        self._cleared = self._launcher.cleared(self._process.pid)


def _give(stream: socket.socket, limit: asyncio.Timeout, seconds: float) -> None:
    """Extend a run's deadline on the host and in the run's supervisor."""
    when = limit.when()
    if when is not None and not limit.expired():
        limit.reschedule(when + seconds)
        with contextlib.suppress(OSError):  # the run has just ended
            stream.send(frames.SECONDS.pack(seconds))
