"""The supervisor of a session: forwards calls to the session's interpreters, limits and ends them.

A session is one interpreter and the copies forked from it: its branches. The branches share
namespaces and the limit of processes. Each has its own process group, pipes, folder and memory
limit. Between calls, the processes of a branch are stopped, so an idle session uses no processor.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from tools.sandbox.inside import frames
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.program.cells import folder_of
from tools.sandbox.inside.supervisor import pausing, process_tree, watchdog
from tools.sandbox.inside.supervisor.branch import (
    CALLING,
    FORKING,
    IDLE,
    STARTING,
    Branch,
    MisuseError,
    copy_of,
    first,
    next_check_s,
)
from tools.sandbox.inside.supervisor.host_link import GoneError, HostLink
from tools.sandbox.inside.supervisor.processes import (
    Child,
    Stream,
    kill_everything,
    report,
    send_signal,
)
from tools.sandbox.inside.workdir import WorkDir, remove_tree

_TICK_S = 0.025
_CHECK_S = 0.25
"""Seconds between checks of a stopped branch, which a timer of its own can resume."""
_INTERRUPT_S = 1.0
"""Seconds that the code of an interrupted call can continue before the branch is killed."""
_START_S = 10.0
"""Maximum seconds for the start of an interpreter or of a copy."""


def serve(
    config: Config, child: Child, job: socket.socket, request: dict[str, Any], workdir: WorkDir
) -> None:
    """Serve a session until its last branch has ended or the host is gone.

    Args:
        config: settings of the zygote.
        child: the first interpreter's process, which already has its request.
        job: stream to the host.
        request: limits of the session.
        workdir: the session's folder and user.
    """
    session = _Session(config, job, request, workdir)
    now = time.monotonic()
    session.add(first(child, now, now + _START_S))
    with contextlib.suppress(GoneError):
        session.serve()


class _Session:
    def __init__(
        self, config: Config, job: socket.socket, request: dict[str, Any], workdir: WorkDir
    ) -> None:
        self.config = config
        self.workdir = workdir
        self.request = request
        self.cap = request["output_kb"] * 1024
        self.branches: dict[int, Branch] = {}
        self.forked = False
        self.ends = time.monotonic() + request["life_s"]
        self.next_tick = 0.0
        self.all_stopped = False
        """Whether every branch is stopped. Checks are then rare."""
        self.ready: dict[int, int] = {}
        """Result of the last poll. The kernel polls in the order of registration."""
        self.poller = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.host = HostLink(job, self.poller)
        self.handlers[job.fileno()] = self.on_host_data
        self.senders: dict[int, Callable[[], None]] = {job.fileno(): self.host.flush}
        """For each socket that can have unsent data: the function to call when it is writable."""

    def serve(self) -> None:
        """Serve until no branch is left and the host has every message."""
        while self.branches:
            due_ms = 1000 * next_check_s(self.branches.values())
            patience = self.poll_timeout_ms() if self.all_stopped else due_ms
            self.ready = dict(self.poller.poll(patience))
            for fd, events in self.ready.items():
                if events & select.POLLOUT and (send_more := self.senders.get(fd)):
                    send_more()
                handler = self.handlers.get(fd)
                if handler is not None and events & ~select.POLLOUT:
                    handler()
            now = time.monotonic()
            if now >= self.next_tick:
                self.tick(now)
                self.next_tick = now + next_check_s(self.branches.values())
        with contextlib.suppress(OSError):
            self.host.finish()

    def poll_timeout_ms(self) -> float:
        """Milliseconds until the next check, or until a branch or the session expires."""
        branches = self.branches.values()
        next_idle = min(b.since + self.request["idle_s"] for b in branches)
        next_check = min(b.checked for b in branches) + _CHECK_S
        wait_s: float = min(self.ends, next_idle, next_check) - time.monotonic()
        return 1000 * max(0.0, wait_s) + 1

    def tick(self, now: float) -> None:
        """Check deadlines and limits."""
        for branch in list(self.branches.values()):
            if now >= self.ends:
                self.end(branch, "timeout", f"open for more than {self.request['life_s']:g} s")
            elif branch.stopped:
                if now >= branch.since + self.request["idle_s"]:
                    self.end(branch, "timeout", f"idle for {self.request['idle_s']:g} s")
                elif now >= branch.checked + _CHECK_S and pausing.was_resumed(branch, self.members):
                    self.end(branch, "killed", "its processes resumed between calls")
            elif branch.guard is not None and (trouble := branch.guard.tick()):
                self.end(branch, trouble, branch.reason)
            elif now >= branch.deadline:  # after the limits, which hold during an interrupt too
                self.on_deadline(branch, now)
            elif branch.state != IDLE or now < branch.since + _TICK_S:
                continue
            elif trouble := pausing.stop(branch, self.members):
                self.end(branch, trouble, branch.reason)
        for pid in (strays := self.strays()):  # no branch owns them
            send_signal(pid, signal.SIGKILL)
        self.reap()
        # A stray that was just killed is reaped at the next check.
        self.all_stopped = not strays and all(branch.stopped for branch in self.branches.values())

    def on_deadline(self, branch: Branch, now: float) -> None:
        """Interrupt or end a branch whose deadline has passed."""
        if branch.state == STARTING:
            self.end(branch, "killed", f"it was not ready within {_START_S:g} s")
        elif branch.state == FORKING:
            self.end(branch, "killed", "the interpreter does not answer")
        elif branch.interrupted:
            if branch.waits_for_processor(now):
                return
            self.end(branch, "timeout", "the call continued after its interrupt")
        else:
            branch.interrupt(now + _INTERRUPT_S)

    def on_host_data(self) -> None:
        """Handle the host's frames."""
        for operation, number, body in self.host.receive():
            branch = self.branches.get(number)
            if branch is None:  # it ended while the frame was in transit
                self.refuse_copy(operation, body, "the original has ended")
                continue
            try:
                self.handle(operation, branch, body)
            except MisuseError as error:
                self.end(branch, "killed", str(error))
                self.refuse_copy(operation, body, str(error))

    def refuse_copy(self, operation: int, body: bytes, reason: str) -> None:
        """If the frame asks for a copy, report to the host that there will be no copy."""
        if operation == frames.FORK:
            (number,) = frames.NEW.unpack(body)
            self.host.send(frames.STARTED, number, reason.encode())

    def handle(self, operation: int, branch: Branch, body: bytes) -> None:
        """Handle one frame of the host."""
        now = time.monotonic()
        if operation == frames.RUN:
            self.resume(branch, now)
            (seconds,) = frames.CALL.unpack_from(body)
            branch.begin(CALLING, now, now + seconds)
            branch.run(body[frames.CALL.size :])
            self.push(branch)
        elif operation == frames.INTERRUPT:
            if branch.state == CALLING and not branch.interrupted:
                branch.interrupt(now + _INTERRUPT_S)
        elif operation == frames.FORK:
            self.resume(branch, now)
            self.forked = True
            (number,) = frames.NEW.unpack(body)
            try:
                self.add(copy_of(branch, number, now, now + _START_S))
            except OSError as error:
                self.refuse_copy(operation, body, error.strerror or str(error))
        else:
            self.end(branch, "closed", "")

    def add(self, branch: Branch) -> None:
        """Add a branch and watch its descriptors."""
        self.branches[branch.number] = branch
        self.all_stopped = False
        child = branch.child
        child.stdout.cap = child.stderr.cap = self.cap
        self.listen(child.link.fileno(), functools.partial(self.on_interpreter_data, branch))
        for stream in (child.stdout, child.stderr):
            self.listen(stream.fd, functools.partial(self.drain, stream))
        if child.pid:
            self.watch_process(branch)

    def watch_process(self, branch: Branch) -> None:
        """Watch the process of a branch and its limits."""
        self.listen(branch.child.pidfd, self.on_exit)
        branch.guard = watchdog.Watchdog(
            self.config,
            self.workdir,
            self.request,
            branch.child,
            functools.partial(self.members, branch),
        )

    def members(self, branch: Branch) -> list[int]:
        """The processes of a branch, or of the whole session if the session was never forked."""
        return branch.members() if self.forked else process_tree.descendants()

    def starting(self) -> bool:
        """Whether there is a copy whose process is not known yet."""
        return any(branch.child.pid == 0 for branch in self.branches.values())

    def strays(self) -> set[int]:
        """Processes that belong to no branch: orphans that this process has adopted."""
        if not self.forked or not self.branches or self.starting():
            return set()
        # Comparing all processes with the branches' would find those forked between the two lists.
        roots = {branch.child.pid for branch in self.branches.values()}
        adopted = set(process_tree.children(os.getpid())) - roots
        return adopted.union(*map(process_tree.descendants, adopted))

    def listen(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever ``fd`` is readable."""
        self.handlers[fd] = handler
        self.poller.register(fd, select.POLLIN)

    def push(self, branch: Branch) -> None:
        """Send the rest of a frame, now or when the socket is writable.

        The time limit of the call bounds the wait.
        """
        fd = branch.child.link.fileno()
        if branch.unsent:
            branch.push()
        if branch.unsent and fd in self.handlers:  # else its socket is closed and the branch ends
            self.senders[fd] = functools.partial(self.push, branch)
            self.poller.modify(fd, select.POLLIN | select.POLLOUT)
        elif self.senders.pop(fd, None) is not None:
            self.poller.modify(fd, select.POLLIN)

    def ignore(self, fds: Iterable[int]) -> None:
        """Stop watching descriptors."""
        for fd in fds:
            self.senders.pop(fd, None)
            if self.handlers.pop(fd, None) is not None:
                self.poller.unregister(fd)

    def drain(self, stream: Stream) -> None:
        """Read a stream's output, so that the process that writes it can continue."""
        stream.drain()
        if stream.closed:
            self.ignore([stream.fd])

    def on_interpreter_data(self, branch: Branch) -> None:
        """Read and handle the message of an interpreter."""
        try:
            message = branch.receive(self.cap, [b.child.pid for b in self.branches.values()])
        except EOFError:
            self.ignore([branch.child.link.fileno()])
            if branch.child.pid == 0:
                self.end(branch, "killed", "")
            return  # a known process without a socket is dying, or reaches its deadline
        except MisuseError as error:
            self.end(branch, "killed", str(error))
            return
        if branch.child.pid and branch.guard is None:
            self.watch_process(branch)
        if message is not None:
            self.on_answer(branch, *message)

    def on_answer(self, branch: Branch, kind: int, text: bytes) -> None:
        """Handle the answer of an interpreter."""
        now = time.monotonic()
        if branch.state == CALLING:
            self.host.send(frames.ANSWERED, branch.number, branch.answer(kind, text, self.ready))
        elif branch.state == STARTING:
            if kind != frames.READY or branch.child.pid == 0:
                reason = text.decode(errors="replace") or "it is not the copy"
                self.end(branch, "killed", reason)
                return
            if branch.number and self.config.isolation != "namespaces":
                with contextlib.suppress(OSError):  # the process is already dead
                    os.setpgid(branch.child.pid, branch.child.pid)
        elif kind == frames.REFUSED and branch.copy is not None:
            self.end(branch.copy, "killed", text.decode(errors="replace"))
        branch.idle(now)
        self.finish_copy(branch)
        if not branch.announced:
            self.announce(branch)

    def finish_copy(self, branch: Branch) -> None:
        """Announce the copy of ``branch``, after the branch has made the copy or has ended."""
        copy, branch.copy = branch.copy, None
        if copy is not None:
            self.announce(copy)

    def announce(self, branch: Branch) -> None:
        """Report to the host whether a new branch has started.

        The report waits until the original is ready: before that, the host must call neither
        branch.
        """
        busy = any(b.copy is branch for b in self.branches.values())
        if not busy and (branch.refused or branch.state == IDLE):
            branch.announced = True
            self.host.send(frames.STARTED, branch.number, branch.refused.encode())

    def resume(self, branch: Branch, now: float) -> None:
        """Resume the processes of a stopped branch."""
        if branch.stopped:
            branch.stopped = self.all_stopped = False
            for pid in self.members(branch):
                send_signal(pid, signal.SIGCONT)
            self.next_tick = min(self.next_tick, now + _TICK_S)

    def on_exit(self) -> None:
        """End each branch whose process has ended."""
        self.reap()
        for branch in list(self.branches.values()):
            guard = branch.guard
            if branch.child.status == signal.SIGKILL and guard and guard.out_of_memory():
                self.end(branch, "memory", guard.reason)
            elif branch.child.status is not None:
                self.end(branch, "", "")

    def reap(self) -> None:
        """Reap dead processes, without waiting."""
        roots = {b.child.pid: b.child for b in self.branches.values()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (child := roots.get(pid)) is not None:
                child.status = status
                child.cpu_s += usage.ru_utime + usage.ru_stime
                child.max_rss_kb = max(child.max_rss_kb, usage.ru_maxrss)

    def end(self, branch: Branch, verdict: str, reason: str) -> None:
        """Kill a branch, wait for its death, and report to the host."""
        if self.branches.get(branch.number) is not branch:
            return
        taken = time.monotonic() - branch.since
        self.kill(branch)
        for stream in (branch.child.stdout, branch.child.stderr):
            stream.drain()
        self.remove(branch)
        if branch.announced:
            message = report(branch.child, verdict, reason, taken)
            self.host.send(frames.ENDED, branch.number, message)
        else:
            branch.refused = reason or "it ended before it was ready"
            self.announce(branch)
        self.finish_copy(branch)

    def remove(self, branch: Branch) -> None:
        del self.branches[branch.number]
        self.all_stopped = False
        self.ignore(branch.descriptors())
        branch.close()
        if self.branches:  # else the session's whole folder is removed
            # Files that another branch writes there meanwhile stay until the end of the session.
            with contextlib.suppress(OSError):
                remove_tree(folder_of(self.workdir.folder, branch.number))

    def kill(self, branch: Branch) -> None:
        """Kill every process of a branch, and wait for their death."""
        if len(self.branches) == 1 and branch.child.pid:
            kill_everything(self.config, branch.child)
            return
        while True:
            doomed = self.strays().union(branch.members())
            for pid in doomed:
                send_signal(pid, signal.SIGKILL)
            self.reap()
            if not doomed:
                return
            time.sleep(0.0005)
