"""The trusted owner of a session: carries calls to its interpreters, supervises and ends them.

A session is one interpreter and the copies forked from it, its branches. They share namespaces and
the limit of processes; each has a process group, pipes, a folder and a memory limit of its own.
Between calls nothing of a branch runs: its processes are stopped, so an idle session costs no time.
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

from tools.sandbox.inside import frames, rest, watchdog
from tools.sandbox.inside.branch import (
    CALLING,
    FORKING,
    IDLE,
    STARTING,
    Branch,
    MisuseError,
    copy_of,
    first,
    patience_s,
)
from tools.sandbox.inside.cells import folder_of
from tools.sandbox.inside.child import Child, Stream, kill_everything, report, send_signal
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.judge import GoneError, Judge
from tools.sandbox.inside.surroundings import Place, remove_tree

_TICK_S = 0.025
_LOOK_S = 0.25
"""Between looks at a branch that is stopped: a timer of its own may have it go on."""
_INTERRUPT_S = 1.0
"""Seconds that an interrupted call has to come to its end before the branch is killed."""
_START_S = 10.0
"""Seconds until an interpreter must be ready, or a copy made."""


def serve(
    config: Config, child: Child, job: socket.socket, request: dict[str, Any], place: Place
) -> None:
    """Serve a session until its last branch has ended or the judge is gone.

    Args:
        config: settings of the generation.
        child: the first interpreter's process, which has its request already.
        job: the stream to the judge.
        request: limits of the session.
        place: the session's folder and user.
    """
    session = _Session(config, job, request, place)
    now = time.monotonic()
    session.add(first(child, now, now + _START_S))
    with contextlib.suppress(GoneError):
        session.serve()


class _Session:
    def __init__(
        self, config: Config, job: socket.socket, request: dict[str, Any], place: Place
    ) -> None:
        self.config = config
        self.place = place
        self.request = request
        self.cap = request["output_kb"] * 1024
        self.branches: dict[int, Branch] = {}
        self.forked = False
        self.ends = time.monotonic() + request["life_s"]
        self.next_tick = 0.0
        self.resting = False
        """Whether every branch is stopped, so that looks may be rare."""
        self.ready: dict[int, int] = {}
        """What the last poll found. The kernel looks in the order of registration."""
        self.poller = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.judge = Judge(job, self.poller)
        self.handlers[job.fileno()] = self.hear_judge
        self.senders: dict[int, Callable[[], None]] = {job.fileno(): self.judge.flush}
        """What to call when a socket takes more."""

    # ---- the loop ------------------------------------------------------------------------

    def serve(self) -> None:
        """Until no branch is left and the judge has every word."""
        while self.branches:
            due_ms = 1000 * patience_s(self.branches.values())
            patience = self.patience_ms() if self.resting else due_ms
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
                self.next_tick = now + patience_s(self.branches.values())
        with contextlib.suppress(OSError):
            self.judge.finish()

    def patience_ms(self) -> float:
        """Until the next look, or a branch has been idle, or the session open, for too long."""
        branches = self.branches.values()
        next_idle = min(b.since + self.request["idle_s"] for b in branches)
        next_look = min(b.looked for b in branches) + _LOOK_S
        wait_s: float = min(self.ends, next_idle, next_look) - time.monotonic()
        return 1000 * max(0.0, wait_s) + 1

    def tick(self, now: float) -> None:
        """Look at clocks and memory."""
        for branch in list(self.branches.values()):
            if now >= self.ends:
                self.end(branch, "timeout", f"open for more than {self.request['life_s']:g} s")
            elif branch.stopped:
                if now >= branch.since + self.request["idle_s"]:
                    self.end(branch, "timeout", f"idle for {self.request['idle_s']:g} s")
                elif now >= branch.looked + _LOOK_S and rest.goes_on(branch, self.members):
                    self.end(branch, "killed", "its processes went on between calls")
            elif now >= branch.deadline:
                self.late(branch, now)
            elif branch.guard is not None and (trouble := branch.guard.tick()):
                self.end(branch, trouble, branch.reason)
            elif branch.state != IDLE or now < branch.since + _TICK_S:
                continue
            elif trouble := rest.stop(branch, self.members):
                self.end(branch, trouble, branch.reason)
        for pid in (strays := self.strays()):  # their owner is unknown
            send_signal(pid, signal.SIGKILL)
        self.reap()
        # A stray that was killed just now is buried at the next look.
        self.resting = not strays and all(branch.stopped for branch in self.branches.values())

    def late(self, branch: Branch, now: float) -> None:
        """The branch's deadline has come."""
        if branch.state == STARTING:
            self.end(branch, "killed", f"it was not ready within {_START_S:g} s")
        elif branch.state == FORKING:
            self.end(branch, "killed", "the interpreter does not answer")
        elif branch.interrupted:
            self.end(branch, "timeout", "the call went on after it was interrupted")
        else:
            branch.interrupt(now + _INTERRUPT_S)

    # ---- the judge -----------------------------------------------------------------------

    def hear_judge(self) -> None:
        """Do what the judge wants."""
        for operation, number, body in self.judge.receive():
            branch = self.branches.get(number)
            if branch is None:  # it ended while the frame was on its way
                self.refuse(operation, body, "there is nothing to copy any more")
                continue
            try:
                self.obey(operation, branch, body)
            except MisuseError as error:
                self.end(branch, "killed", str(error))
                self.refuse(operation, body, str(error))

    def refuse(self, operation: int, body: bytes, reason: str) -> None:
        """Tell the judge, who waits for a copy, that there will be none."""
        if operation == frames.FORK:
            (number,) = frames.NEW.unpack(body)
            self.judge.send(frames.STARTED, number, reason.encode())

    def obey(self, operation: int, branch: Branch, body: bytes) -> None:
        """Do what the judge wants."""
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
                self.refuse(operation, body, error.strerror or str(error))
        else:
            self.end(branch, "closed", "")

    # ---- interpreters --------------------------------------------------------------------

    def add(self, branch: Branch) -> None:
        """Watch a new branch."""
        self.branches[branch.number] = branch
        self.resting = False
        child = branch.child
        child.stdout.cap = child.stderr.cap = self.cap
        self.listen(child.talk.fileno(), functools.partial(self.hear, branch))
        for stream in (child.stdout, child.stderr):
            self.listen(stream.fd, functools.partial(self.drain, stream))
        if child.pid:
            self.know(branch)

    def know(self, branch: Branch) -> None:
        """Watch the process of a branch."""
        self.listen(branch.child.pidfd, self.bury)
        branch.guard = watchdog.Watchdog(
            self.config,
            self.place,
            self.request,
            branch.child,
            functools.partial(self.members, branch),
        )

    def members(self, branch: Branch) -> list[int]:
        """The processes of a branch; a session that was never forked has but one."""
        return branch.members() if self.forked else watchdog.descendants()

    def starting(self) -> bool:
        """Whether there is a process that is not known yet."""
        return any(branch.child.pid == 0 for branch in self.branches.values())

    def strays(self) -> set[int]:
        """Processes that are in no branch: their parents have ended, and this one adopted them."""
        if not self.forked or not self.branches or self.starting():
            return set()
        # Two looks, at everything and at the branches, would differ by what a branch forks between.
        roots = {branch.child.pid for branch in self.branches.values()}
        adopted = set(watchdog.children(os.getpid())) - roots
        return adopted.union(*map(watchdog.descendants, adopted))

    def listen(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever there is something to read."""
        self.handlers[fd] = handler
        self.poller.register(fd, select.POLLIN)

    def push(self, branch: Branch) -> None:
        """Send the rest of a frame, now or when the interpreter has made room for it.

        It has as long as the call may take.
        """
        fd = branch.child.talk.fileno()
        if branch.unsent:
            branch.push()
        if branch.unsent and fd in self.handlers:  # else it says no more, and runs into its end
            self.senders[fd] = functools.partial(self.push, branch)
            self.poller.modify(fd, select.POLLIN | select.POLLOUT)
        elif self.senders.pop(fd, None) is not None:
            self.poller.modify(fd, select.POLLIN)

    def ignore(self, fds: Iterable[int]) -> None:
        """Watch descriptors no longer."""
        for fd in fds:
            self.senders.pop(fd, None)
            if self.handlers.pop(fd, None) is not None:
                self.poller.unregister(fd)

    def drain(self, stream: Stream) -> None:
        """Read output, so that its writer goes on."""
        stream.drain()
        if stream.closed:
            self.ignore([stream.fd])

    def hear(self, branch: Branch) -> None:
        """Read what an interpreter says."""
        try:
            said = branch.hear(self.cap, [b.child.pid for b in self.branches.values()])
        except EOFError:
            self.ignore([branch.child.talk.fileno()])
            if branch.child.pid == 0:
                self.end(branch, "killed", "")
            return  # a known process that says no more is dying, or runs into its deadline
        except MisuseError as error:
            self.end(branch, "killed", str(error))
            return
        if branch.child.pid and branch.guard is None:
            self.know(branch)
        if said is not None:
            self.answered(branch, *said)

    def answered(self, branch: Branch, kind: int, text: bytes) -> None:
        """An interpreter has finished what it was asked for."""
        now = time.monotonic()
        if branch.state == CALLING:
            self.judge.send(frames.ANSWERED, branch.number, branch.answer(kind, text, self.ready))
        elif branch.state == STARTING:
            if kind != frames.READY or branch.child.pid == 0:
                reason = text.decode(errors="replace") or "it is not the copy"
                self.end(branch, "killed", reason)
                return
            if branch.number and self.config.isolation != "namespaces":
                with contextlib.suppress(OSError):  # it is dead already
                    os.setpgid(branch.child.pid, branch.child.pid)
        elif kind == frames.REFUSED and branch.copy is not None:
            self.end(branch.copy, "killed", text.decode(errors="replace"))
        branch.idle(now)
        self.copied(branch)
        if not branch.announced:
            self.announce(branch)

    def copied(self, branch: Branch) -> None:
        """``branch`` is done with making its copy, or has ended."""
        copy, branch.copy = branch.copy, None
        if copy is not None:
            self.announce(copy)

    def announce(self, branch: Branch) -> None:
        """Tell the judge what came of a new branch, once that is known.

        Not before its original is done with making it: nobody may call either of them until then.
        """
        busy = any(b.copy is branch for b in self.branches.values())
        if not busy and (branch.refused or branch.state == IDLE):
            branch.announced = True
            self.judge.send(frames.STARTED, branch.number, branch.refused.encode())

    # ---- between calls -------------------------------------------------------------------

    def resume(self, branch: Branch, now: float) -> None:
        """Let them go on."""
        if branch.stopped:
            branch.stopped = self.resting = False
            for pid in self.members(branch):
                send_signal(pid, signal.SIGCONT)
            self.next_tick = min(self.next_tick, now + _TICK_S)

    # ---- ends ----------------------------------------------------------------------------

    def bury(self) -> None:
        """A process has ended: so has its branch."""
        self.reap()
        for branch in list(self.branches.values()):
            guard = branch.guard
            if branch.child.status == signal.SIGKILL and guard and guard.out_of_memory():
                self.end(branch, "memory", guard.reason)
            elif branch.child.status is not None:
                self.end(branch, "", "")

    def reap(self) -> None:
        """Collect the dead, without waiting."""
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
        """Kill a branch, wait until it is dead, and report to the judge."""
        if self.branches.get(branch.number) is not branch:
            return
        taken = time.monotonic() - branch.since
        self.kill(branch)
        for stream in (branch.child.stdout, branch.child.stderr):
            stream.drain()
        self.forget(branch)
        if branch.announced:
            said = report(branch.child, verdict, reason, taken)
            self.judge.send(frames.ENDED, branch.number, said)
        else:
            branch.refused = reason or "it ended before it was ready"
            self.announce(branch)
        self.copied(branch)

    def forget(self, branch: Branch) -> None:
        del self.branches[branch.number]
        self.resting = False
        self.ignore(branch.descriptors())
        branch.close()
        if self.branches:  # else the whole place goes
            # What another branch writes there meanwhile stays until the end of the session.
            with contextlib.suppress(OSError):
                remove_tree(folder_of(self.place.folder, branch.number))

    def kill(self, branch: Branch) -> None:
        """Kill every process of a branch, and wait for their end."""
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
