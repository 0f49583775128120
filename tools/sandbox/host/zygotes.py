"""Starts, uses and replaces zygotes: processes with a loaded interpreter that fork supervisors."""

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
from collections.abc import Callable

from tools.sandbox.backends.launcher import Launcher
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.host.job import Reply, Request
from tools.sandbox.host.reading import Clock
from tools.sandbox.inside import frames
from tools.sandbox.limits import Limits

GRACE_S = 10.0
"""Seconds that the host waits for a reply after a run's time limit. Then the sandbox counts as
broken."""
_PAUSES_S = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Seconds to wait before each start, by the number of earlier failures. Then starting fails."""
_MAX_REFUSALS = 3
"""Number of zygotes that can refuse a job before the job fails."""
_MAX_RETIRED = 2
"""Number of replaced zygotes with open sessions at which no further zygote is replaced."""
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

    async def close(self) -> None:
        """Close the control socket, which ends all processes of the zygote, and wait for their end.

        Closing continues if the caller is cancelled. The caller may then call ``close`` again.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._control.close()
        try:
            async with asyncio.timeout(GRACE_S):
                await asyncio.shield(self._ended)
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            await self._ended
        finally:
            if not self.dead:  # the event loop is ending
                self._loop.remove_reader(self._pidfd)
                self._reap()
            os.close(self._pidfd)
            os.close(self._errors)
            cleared = self._launcher.cleared(self._process.pid)
        for _ in range(_CLEARING_TRIES):
            if cleared:
                return
            await asyncio.sleep(0.02)
            cleared = self._launcher.cleared(self._process.pid)
        _log.warning("sandbox: a run left files that could not be removed")


def _give(stream: socket.socket, limit: asyncio.Timeout, seconds: float) -> None:
    """Extend a run's deadline on the host and in the run's supervisor."""
    when = limit.when()
    if when is not None and not limit.expired():
        limit.reschedule(when + seconds)
        with contextlib.suppress(OSError):  # the run has just ended
            stream.send(frames.SECONDS.pack(seconds))


class Zygotes:
    """The current zygote, which is replaced after ``recycle_after`` runs and when it dies."""

    def __init__(
        self, launcher: Launcher, limits: Limits, *, idle: int, recycle_after: int
    ) -> None:
        self._launcher = launcher
        self._limits = limits
        self._idle = idle
        self._recycle_after = recycle_after
        self._current: Zygote | None = None
        self._retired: list[Zygote] = []  # replaced, with runs still in flight
        self._closing: set[asyncio.Task[None]] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._ending = asyncio.Event()
        self._bad_starts = 0
        self.started = self.recycled = self.died = self.refused = 0
        """Numbers of zygotes that were started, recycled and lost, and number of refused jobs."""

    async def start(self) -> None:
        """Start the first zygote.

        Raises:
            SandboxFailure: the sandbox was closed meanwhile.
            SandboxUnavailable: the zygote does not start; the message quotes its standard error.
        """
        try:
            async with self._lock:
                self._check_open()
                self._current = await self._spawn()
        except (LostError, OSError) as error:
            raise SandboxUnavailable(f"{self._launcher.backend} does not start: {error}") from None

    async def _spawn(self) -> Zygote:
        zygote = Zygote(self._launcher, self._limits, self._idle)
        try:
            await zygote.start()
        except BaseException:
            await zygote.close()
            raise
        self.started += 1
        return zygote

    async def run(
        self, request: Request, channel: socket.socket | None, clock: Clock | None = None
    ) -> Reply:
        """Run one job on the current zygote.

        Raises:
            LostError: there was no reply.
            SandboxFailure: no zygote starts any more.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                zygote = await self._usable()
                return await zygote.run(request, channel, clock)
            except RefusedError as error:
                refusal = error
            finally:
                self._tidy()
        raise refusal

    async def connect(self) -> tuple[socket.socket, Callable[[], None]]:
        """Open a stream to a supervisor. Return the stream and a function that closes it.

        Raises:
            LostError: no supervisor can be reached.
            SandboxFailure: no zygote starts any more.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                zygote = await self._usable()
                stream = zygote.connect()
                break
            except RefusedError as error:
                refusal = error
        else:
            raise refusal

        def close() -> None:
            zygote.disconnect(stream)
            self._tidy()

        return stream, close

    async def _usable(self) -> Zygote:
        async with self._lock:
            self._check_open()
            zygote = self._current
            if zygote is None or zygote.dead or zygote.spent:
                self.died += zygote is not None
                self._retire()
                zygote = await self._respawn()
            elif (
                zygote.served >= self._recycle_after
                and self._replacing is None
                and len(self._retired) < _MAX_RETIRED
            ):
                self._replacing = asyncio.create_task(self._replace())
            return zygote

    async def _respawn(self) -> Zygote:
        if self._bad_starts >= len(_PAUSES_S):
            self.refused += 1
            raise SandboxFailure(
                f"{self._launcher.backend} did not start {self._bad_starts} times in a row: "
                "make a new sandbox",
                retryable=False,
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSES_S[self._bad_starts]):
                await self._ending.wait()
        self._check_open()
        try:
            self._current = await self._spawn()
        except (LostError, OSError, SandboxUnavailable) as error:
            self._bad_starts += 1
            raise RefusedError(f"the sandbox does not start again: {error}") from None
        self._bad_starts = 0
        return self._current

    def _check_open(self) -> None:
        if self._ending.is_set():
            raise SandboxFailure(
                f"{self._launcher.backend}: the sandbox was closed meanwhile",
                retryable=False,
            )

    async def _replace(self) -> None:
        try:
            fresh = await self._spawn()
        except (LostError, OSError, SandboxUnavailable):
            return  # the old zygote continues; the next run tries again
        finally:
            self._replacing = None
        self.recycled += 1
        self._retire()
        self._current = fresh

    def _retire(self) -> None:
        if self._current is not None:
            self._retired.append(self._current)
            self._current = None
        self._tidy()

    def _tidy(self) -> None:
        """Close the replaced zygotes that have no runs, in the background."""
        for zygote in [z for z in self._retired if z.running == 0]:
            self._retired.remove(zygote)
            task = asyncio.create_task(zygote.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all zygotes and their processes. Jobs in flight are lost."""
        self._ending.set()
        if self._replacing is not None:
            self._replacing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replacing
        async with self._lock:  # so that a zygote which is starting ends as well
            remaining = [*self._retired, *([self._current] if self._current else [])]
            self._retired, self._current = [], None
        await asyncio.gather(*(zygote.close() for zygote in remaining), *self._closing)
