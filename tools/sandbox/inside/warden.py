"""The trusted owner of one run: sets its surroundings up, supervises it, kills it, reports."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import NoReturn

from tools.sandbox.inside import (
    collect,
    frames,
    kernel,
    passing,
    program,
    sessions,
    surroundings,
    watchdog,
)
from tools.sandbox.inside.child import Child, Stream, kill_everything, reap, report
from tools.sandbox.inside.codec import receive_exactly, unpack
from tools.sandbox.inside.config import Config

_SET_UP_S = 10.0
"""Seconds that a step of set-up may take before the warden gives up."""
_PIPE_CHUNK = 1 << 16


class _Stopped(BaseException):
    """The zygote is gone: kill the run, wipe its folder, report to nobody."""


def main(
    config: Config,
    filter_: kernel.Filter | None,
    control: socket.socket,
    tell: Callable[[], None],
) -> NoReturn:
    """Serve one run and exit.

    Args:
        config: settings of the generation.
        filter_: of the program's system calls.
        control: where jobs arrive, shared with the other waiting wardens.
        tell: called when ready for a job, and again when one was taken.
    """
    status = 1
    try:
        _serve(config, filter_, control, tell)
        status = 0
    except BaseException as error:
        complain(error)
    finally:
        os._exit(status)


def complain(error: BaseException) -> None:
    """Tell the judge why this process ends; it reads standard error when a run gets no reply."""
    with contextlib.suppress(OSError):
        os.write(2, f"sandbox set-up failed: {type(error).__name__}: {error}\n".encode())


def _serve(
    config: Config,
    filter_: kernel.Filter | None,
    control: socket.socket,
    tell: Callable[[], None],
) -> None:
    score = surroundings.OutOfMemoryScore() if config.group_events_fd >= 0 else None
    if config.isolation == "namespaces":
        surroundings.enter_namespaces(config)
    else:
        signal.signal(signal.SIGTERM, _stop)
        kernel.die_with_parent(signal.SIGTERM)
    place = surroundings.make_place(config)
    child = None
    try:
        try:
            if score is None:
                child = _fork_program(config, filter_, place, control)
            else:
                with score.raised():
                    child = _fork_program(config, filter_, place, control)
            if not place.private:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            tell()
            message, fds = passing.receive(control, 16, 2)
            if not message:
                return
            tell()
            job = _socket.socket(fileno=fds[0])
            try:
                result = _supervise(config, child, job, fds[1:], place)
                if result is not None:
                    job.settimeout(_SET_UP_S)
                    job.sendall(result)
            except (EOFError, ConnectionError):
                pass  # the judge lost interest
        finally:
            # A stop that comes right here is caught below; the next ones are ignored.
            _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    except _Stopped:
        pass
    finally:
        if child is not None:
            kill_everything(config, child)
        surroundings.remove_place(place)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _fork_program(
    config: Config,
    filter_: kernel.Filter | None,
    place: surroundings.Place,
    control: socket.socket,
) -> Child:
    """Fork the program's process and wait until it is confined."""
    inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
    mine, theirs = _socket.socketpair()
    task_limit = surroundings.task_limit(config)
    pid = os.fork()
    if pid == 0:
        stdio = inputs[0], outputs[1], errors[1]
        try:
            program.main(config, place, task_limit, filter_, theirs, stdio)
        except BaseException as error:  # files that do not fit; a late signal's handler
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(1)
    for fd in (inputs[0], outputs[1], errors[1]):
        os.close(fd)
    theirs.close()
    for fd in (inputs[1], outputs[0], errors[0]):
        os.set_blocking(fd, False)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    mine.settimeout(_SET_UP_S)
    child = Child(
        pid=pid,
        pidfd=os.pidfd_open(pid),
        talk=mine,
        stdin=inputs[1],
        stdout=Stream(outputs[0]),
        stderr=Stream(errors[0]),
    )
    if mine.recv(1) != program.READY:
        child.stderr.cap = 4096
        child.stderr.drain()
        raise RuntimeError(child.stderr.kept.decode(errors="replace") or "no answer")
    return child


def _supervise(
    config: Config, child: Child, job: _socket.socket, channel: list[int], place: surroundings.Place
) -> bytes | None:
    """Run the job to its end; the reply for the judge, or None when the judge went away."""
    job.settimeout(_SET_UP_S)
    (length,) = struct.unpack("!I", receive_exactly(job, 4))
    head = receive_exactly(job, length)
    request = unpack(head)
    stdin = receive_exactly(job, request["stdin_size"])
    body = receive_exactly(job, sum(request["sizes"]))
    child.stdout.cap = child.stderr.cap = request["output_kb"] * 1024
    started = time.monotonic()
    # One that has ended is seen below.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
        _hand_over(child, struct.pack("!I", length) + head + body, channel)
    if request["mode"] == "session":
        sessions.serve(config, child, socket.socket(fileno=job.detach()), request, place)
        return None
    child.talk.close()
    for fd in channel:
        os.close(fd)
    guard = watchdog.Watchdog(config, place, request, child)
    verdict = _watch(child, job, stdin, started + request["wall_s"], guard)
    wall_s = time.monotonic() - started
    kill_everything(config, child)
    if verdict == "gone":
        return None
    child.stdout.drain()
    child.stderr.drain()
    if verdict == "" and child.status == signal.SIGKILL and guard.out_of_memory():
        verdict = "memory"
    if verdict == "" and (child.stdout.truncated or child.stderr.truncated):
        verdict = "output"
    if not request["collect"]:
        return report(child, verdict, guard.reason, wall_s)
    files = collect.collect(place.folder, request["collect"], request["returned_kb"] * 1024)
    return report(child, verdict, guard.reason, wall_s, files)


def _hand_over(child: Child, job: bytes, channel: list[int]) -> None:
    sent = passing.send(child.talk, job[:4], channel) if channel else 0
    child.talk.sendall(job[sent:])


def _watch(
    child: Child, job: _socket.socket, stdin: bytes, deadline: float, guard: watchdog.Watchdog
) -> str:
    """Until the program's own process ends: "", or why the run must be ended now."""
    poller = select.poll()
    for fd in (child.pidfd, child.stdout.fd, child.stderr.fd, job.fileno()):
        poller.register(fd, select.POLLIN)
    poller.register(child.stdin, select.POLLOUT)
    unsent = memoryview(stdin)
    granted = bytearray()
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return "timeout"
        events = dict(poller.poll(1000 * min(guard.patience_s, remaining)))
        if job.fileno() in events:
            more = job.recv(_PIPE_CHUNK)
            if not more:
                return "gone"
            granted += more
            while len(granted) >= frames.SECONDS.size:
                deadline += frames.SECONDS.unpack_from(granted)[0]
                del granted[: frames.SECONDS.size]
        for stream in (child.stdout, child.stderr):
            if stream.fd in events:
                stream.drain()
                if stream.truncated:
                    return "output"
                if stream.closed:
                    poller.unregister(stream.fd)
        if child.stdin in events:
            unsent = _feed(child.stdin, unsent)
            if not unsent:
                poller.unregister(child.stdin)
                os.close(child.stdin)
                child.stdin = -1
        reap(child, os.WNOHANG)
        if child.status is not None:
            return ""
        trouble = guard.tick()
        if trouble:
            return trouble


def _feed(fd: int, unsent: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left once the reader is gone."""
    if not unsent:
        return unsent
    try:
        return unsent[os.write(fd, unsent[:_PIPE_CHUNK]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]
