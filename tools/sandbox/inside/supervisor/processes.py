"""The processes of a run, as seen by its supervisor: output, end and final report."""

from __future__ import annotations

import _socket
import contextlib
import itertools
import math
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.sandbox.inside import codec
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.supervisor import kernel_limits, process_tree, usage

_SCHEDULED = 2
"""Number of a process's clock that counts its scheduled time; see clock_getcpuclockid(3)."""
_PIPE_CHUNK = 1 << 16
_MAX_REAPED = 64
_PATIENCE_S = 0.5
"""Maximum seconds to wait until the kernel allows a change of the processor share."""
_MAX_CHUNKS = 32
"""Maximum number of chunks that ``drain`` reads: more than a pipe holds, so that it reads all
earlier output."""


@dataclass
class Stream:
    """The program's standard output or standard error, kept up to ``cap`` bytes."""

    fd: int
    cap: int = 0
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False
    closed: bool = False
    discards: bool = False
    """Whether output beyond ``cap`` is read and dropped. If False, it is not read."""

    def drain(self) -> None:
        """Read the available output without waiting. Of endless output, read only a part."""
        for _ in range(_MAX_CHUNKS):
            if self.closed or (self.truncated and not self.discards):
                return
            try:
                data = os.read(self.fd, _PIPE_CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.closed = True
            self.kept += data
            if len(self.kept) > self.cap:
                del self.kept[self.cap :]
                self.truncated = True

    def take(self) -> tuple[bytes, bool]:
        """Return the kept output, and whether it was truncated; then reset both."""
        taken = bytes(self.kept), self.truncated
        self.kept.clear()
        self.truncated = False
        return taken


@dataclass
class Child:
    """The program's process and the supervisor's ends of its pipes and socket."""

    pid: int
    pidfd: int
    link: _socket.socket
    stdin: int
    stdout: Stream
    stderr: Stream
    status: int | None = None
    """Wait status of the process, once it is reaped."""
    shares_little: bool = False
    """Whether the run has the smallest processor share, because it acts like a fork bomb."""
    cpu_s: float = 0.0
    max_rss_kb: int = 0


def processor_s(pid: int) -> float:
    """Processor seconds that the threads of a process have used; infinite if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:
        return math.inf


def reap(child: Child, options: int) -> None:
    """Reap dead processes. If ``options`` is 0, wait until no process is left."""
    # Without waiting, reap a part: children that end as fast as they are reaped must not block.
    for _ in range(_MAX_REAPED) if options & os.WNOHANG else itertools.count():
        try:
            pid, status, usage = os.wait4(-1, options)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child.pid:
            child.status = status
        child.cpu_s += usage.ru_utime + usage.ru_stime
        child.max_rss_kb = max(child.max_rss_kb, usage.ru_maxrss)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process. Do nothing if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def paused(members: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Keep all processes stopped while the context lasts. Yields the ids of all processes.

    After the stop, a thread at most finishes its current system call.
    """
    done: set[int] = set()
    resumed = []
    try:
        while new := set(members()) - done:
            for pid in new:
                if not usage.is_stopped(pid):
                    send_signal(pid, signal.SIGSTOP)
                    resumed.append(pid)
            done |= new
        yield list(done)
    finally:
        for pid in resumed:
            send_signal(pid, signal.SIGCONT)


def kill_everything(config: Config, child: Child) -> None:
    """Kill every process of the run and wait until all are gone."""
    if config.isolation == "namespaces":
        if child.shares_little:
            _restore_share(config)
        # One atomic pass over this pid namespace: no fork slips through.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        reap(child, 0)
        return
    while True:
        # The leader's id stays reserved while the group has members.
        if child.status is None or process_tree.descendants():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for pid in process_tree.descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(child, os.WNOHANG)
        if not process_tree.descendants():
            return
        time.sleep(0.0005)


def _restore_share(config: Config) -> None:
    """Give a run an equal share of the processor again, because its processes need time to die."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        for pid in process_tree.namespace_members():
            try:
                kernel_limits.set_share(config.proc_fd, pid, 0)
            except BlockingIOError:
                break
            except OSError:  # it has ended, or is hidden
                continue
            return
        else:
            return
        time.sleep(_PATIENCE_S / 50)


def report(
    child: Child,
    verdict: str,
    reason: str,
    wall_s: float,
    files: tuple[dict[str, bytes], dict[str, str]] = ({}, {}),
) -> bytes:
    """The supervisor's report to the host, after every process is dead.

    Args:
        child: the program's process.
        verdict: status with which the supervisor ended the run, or "" if it did not end the run.
        reason: description of the reason for ``verdict``.
        wall_s: seconds that the run took.
        files: the result of ``collect``.
    """
    returned, left_out = files
    status = child.status or 0
    signalled = os.WIFSIGNALED(status)
    head: dict[str, Any] = {
        "ended": verdict,
        "reason": reason,
        "exit_code": None if signalled else os.waitstatus_to_exitcode(status),
        "signal": os.WTERMSIG(status) if signalled else None,
        "wall_s": wall_s,
        "cpu_s": child.cpu_s,
        "max_rss_kb": child.max_rss_kb,
        "stdout_truncated": child.stdout.truncated,
        "stderr_truncated": child.stderr.truncated,
        "sizes": [len(child.stdout.kept), len(child.stderr.kept)],
    }
    if returned or left_out:
        head["files"] = {path: len(content) for path, content in returned.items()}
        head["left_out"] = left_out
    body = codec.encode_json(head).encode()
    parts: list[bytes | bytearray] = [
        struct.pack("!I", len(body)),
        body,
        child.stdout.kept,
        child.stderr.kept,
    ]
    return b"".join([*parts, *returned.values()])
