"""The supervisor of one run: prepares the run, enforces its limits, kills it and reports."""

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

from tools.sandbox.inside import codec, fd_passing, frames, kernel, namespaces
from tools.sandbox.inside.codec import encode_json, receive_exactly, unpack
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.program import main as program
from tools.sandbox.inside.supervisor import collect, kernel_limits, sessions, watchdog
from tools.sandbox.inside.supervisor.processes import Child, Stream, kill_everything, reap, report
from tools.sandbox.inside.workdir import WorkDir, make_workdir, remove_workdir

_SET_UP_S = 10.0
"""Maximum seconds for each step of the set-up. If a step takes longer, the supervisor fails."""
_PIPE_CHUNK = 1 << 16
_REHEARSALS = 24
"""Number of jobs that ``warm_up`` rehearses: enough for the interpreter to specialize each
instruction."""
_REHEARSAL = {
    **{"mode": "program", "stdin_size": 0, "sizes": [1], "files": [], "collect": []},
    **{"memory_mb": 64, "disk_mb": 1, "cpu_s": 1, "total_cpu_s": 1.0, "processes": 1},
    **{"output_kb": 1, "wall_s": 1.0, "returned_kb": 1},
}


_VALUE = [1, 2.5, "a", None, (True,), {"b": {3}}]


class _Stopped(BaseException):
    """Raised by SIGTERM when the zygote is gone.

    The supervisor then kills the run and deletes its folder, but does not report.
    """


def main(
    config: Config,
    filter_: kernel.Filter | None,
    control: socket.socket,
    notify: Callable[[], None],
) -> NoReturn:
    """Serve one run and exit.

    Args:
        config: settings of the zygote.
        filter_: the program's system-call filter.
        control: socket on which jobs arrive, shared with the other waiting supervisors.
        notify: called when this supervisor is ready for a job, and again when it has taken a job.
    """
    status = 1
    try:
        _serve(config, filter_, control, notify)
        status = 0
    except BaseException as error:
        report_error(error)
    finally:
        os._exit(status)


def warm_up(config: Config) -> None:
    """Handle a few jobs without running a program. The zygote calls this before its forks.

    The interpreter specializes code that it has run several times. Specialized code touches fewer
    objects, and each touched memory page costs a fork one page fault and a copy.
    """
    text = encode_json(_REHEARSAL).encode()
    mine, theirs = _socket.socketpair()
    mine.settimeout(_SET_UP_S)
    own = os.pidfd_open(os.getpid())
    for _ in range(_REHEARSALS):
        inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
        child = _child_of(os.getpid(), own, mine, (inputs[1], outputs[0], errors[0]))
        fd_passing.send(theirs, text[:16], [inputs[0], outputs[1]])
        theirs.send(text[16:])
        message, fds = fd_passing.receive(mine, 16, 2)
        request = unpack(message + receive_exactly(mine, len(text) - len(message)))
        child.status = 0
        codec.send_message(theirs, ["value", codec.encode(_VALUE), 1])
        codec.decode(codec.receive_message(mine)[1])
        guard = watchdog.Watchdog(config, WorkDir("/", None, private=True), request, child)
        for fd in (*fds, inputs[0], outputs[1], errors[1]):
            os.close(fd)
        _watch(child, mine, b"", time.monotonic() + _SET_UP_S, guard)
        report(child, "", guard.reason, 0.0)
        for stream in (child.stdout, child.stderr):
            os.close(stream.fd)
    os.close(own)
    for end in (mine, theirs):
        end.close()


def report_error(error: BaseException) -> None:
    """Write the reason why this process ends to standard error, which the host reads."""
    with contextlib.suppress(OSError):
        os.write(2, f"sandbox set-up failed: {type(error).__name__}: {error}\n".encode())


def _serve(
    config: Config,
    filter_: kernel.Filter | None,
    control: socket.socket,
    notify: Callable[[], None],
) -> None:
    score = kernel_limits.OutOfMemoryScore() if config.group_events_fd >= 0 else None
    if config.isolation == "namespaces":
        namespaces.enter_namespaces(config)
    else:
        signal.signal(signal.SIGTERM, _stop)
        kernel.die_with_parent(signal.SIGTERM)
    workdir = make_workdir(config)
    child = None
    try:
        try:
            if score is None:
                child = _fork_program(config, filter_, workdir, control)
            else:
                with score.raised():
                    child = _fork_program(config, filter_, workdir, control)
            if not workdir.private:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            notify()
            message, fds = fd_passing.receive(control, 16, 2)
            if not message:
                return
            notify()
            job = _socket.socket(fileno=fds[0])
            try:
                result = _supervise(config, child, job, fds[1:], workdir)
                if result is not None:
                    job.settimeout(_SET_UP_S)
                    job.sendall(result)
            except (EOFError, ConnectionError):
                pass  # the host does not want the result
        finally:
            # A SIGTERM that arrives before this line is caught below; later ones are ignored.
            _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    except _Stopped:
        pass
    finally:
        if child is not None:
            kill_everything(config, child)
        remove_workdir(workdir)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _fork_program(
    config: Config,
    filter_: kernel.Filter | None,
    workdir: WorkDir,
    control: socket.socket,
) -> Child:
    """Fork the program's process and wait until it is confined."""
    inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
    mine, theirs = _socket.socketpair()
    task_limit = kernel_limits.task_limit(config)
    pid = os.fork()
    if pid == 0:
        stdio = inputs[0], outputs[1], errors[1]
        try:
            program.main(config, workdir, task_limit, filter_, theirs, stdio)
        except BaseException as error:  # files that do not fit; the handler of a late signal
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(1)
    for fd in (inputs[0], outputs[1], errors[1]):
        os.close(fd)
    theirs.close()
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    mine.settimeout(_SET_UP_S)
    child = _child_of(pid, os.pidfd_open(pid), mine, (inputs[1], outputs[0], errors[0]))
    if mine.recv(1) != program.READY:
        child.stderr.cap = 4096
        child.stderr.drain()
        raise RuntimeError(child.stderr.kept.decode(errors="replace") or "no answer")
    return child


def _child_of(pid: int, pidfd: int, link: _socket.socket, stdio: tuple[int, int, int]) -> Child:
    for fd in stdio:
        os.set_blocking(fd, False)
    stdin, stdout, stderr = stdio
    return Child(pid, pidfd, link, stdin, Stream(stdout), Stream(stderr))


def _supervise(
    config: Config,
    child: Child,
    job: _socket.socket,
    channel: list[int],
    workdir: WorkDir,
) -> bytes | None:
    """Run the job to its end. Returns the reply for the host, or None if the host is gone."""
    job.settimeout(_SET_UP_S)
    (length,) = struct.unpack("!I", receive_exactly(job, 4))
    head = receive_exactly(job, length)
    request = unpack(head)
    stdin = receive_exactly(job, request["stdin_size"])
    body = receive_exactly(job, sum(request["sizes"]))
    child.stdout.cap = child.stderr.cap = request["output_kb"] * 1024
    started = time.monotonic()
    # The code below notices a program that has ended.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
        _send_job(child, struct.pack("!I", length) + head + body, channel)
    if request["mode"] == "session":
        sessions.serve(config, child, socket.socket(fileno=job.detach()), request, workdir)
        return None
    child.link.close()
    for fd in channel:
        os.close(fd)
    guard = watchdog.Watchdog(config, workdir, request, child)
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
    files = collect.collect(workdir.folder, request["collect"], request["returned_kb"] * 1024)
    return report(child, verdict, guard.reason, wall_s, files)


def _send_job(child: Child, job: bytes, channel: list[int]) -> None:
    sent = fd_passing.send(child.link, job[:4], channel) if channel else 0
    child.link.sendall(job[sent:])


def _watch(
    child: Child, job: _socket.socket, stdin: bytes, deadline: float, guard: watchdog.Watchdog
) -> str:
    """Wait until the program's process ends or the run must be ended.

    Returns the status with which to end the run, or "" if the process ended by itself.
    """
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
        events = dict(poller.poll(1000 * min(guard.next_check_s, remaining)))
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
    """Write as much data as the pipe takes. Returns the rest, or nothing if the reader is gone."""
    if not unsent:
        return unsent
    try:
        return unsent[os.write(fd, unsent[:_PIPE_CHUNK]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]
