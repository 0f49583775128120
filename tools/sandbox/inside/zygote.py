"""The warm process that keeps confined children waiting for jobs. It never runs a program itself.

Three processes serve a run. The zygote (this file) forks wardens; a warden (``warden``) is trusted
and owns one run; the program's own process (``program``) is forked by its warden, confined, and
waits there before any request exists. Requests go to a waiting warden directly: the kernel wakes
one of those that block on the shared control socket.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct

from tools.sandbox.inside import groups, kernel, program, surroundings, warden, watchdog
from tools.sandbox.inside.config import Config

_MAX_FAILURES = 5
"""Wardens that may die in a row before any was ready; then the zygote gives up."""


def main(settings: str) -> None:
    """Serve until the control socket closes.

    Args:
        settings: a ``Config`` as JSON.
    """
    config = Config(**json.loads(settings))
    kernel.set_dumpable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if config.parent_pid:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a loop to end
        kernel.die_with_parent(signal.SIGTERM)
        if os.getppid() != config.parent_pid:
            os._exit(1)
    if config.group_fd >= 0:
        with contextlib.suppress(OSError):  # the launcher looks who is in the group
            os.write(config.group_fd, b"0")
        os.close(config.group_fd)
    program.prepare()
    if config.isolation == "namespaces":
        groups.replace_sessions()
    else:
        kernel.adopt_orphans()  # those of a warden that was killed
    control = socket.socket(fileno=config.control_fd)
    gc.collect()
    gc.disable()
    gc.freeze()
    zygote = _Zygote(config, control)
    status = 0
    try:
        zygote.serve()
    except BaseException as error:
        warden.complain(error)
        status = 1
    if config.isolation != "namespaces":
        zygote.end_wardens()
    os._exit(status)


class _Zygote:
    def __init__(self, config: Config, control: socket.socket) -> None:
        self.config = config
        self.control = control
        self.filter = kernel.Filter(bytes.fromhex(config.seccomp)) if config.seccomp else None
        # Wardens report here: their slot's number when they are ready, and again when they take a
        # job. Two reports make a slot free.
        self.reports, self.report = os.pipe()
        self.slots: dict[int, int] = {}  # slot -> process id, until the job is taken
        self.ready: set[int] = set()
        self.wardens: set[int] = set()  # every living one, those with a job included
        self.next_slot = 0
        self.failures = 0

    def serve(self) -> None:
        """Keep wardens waiting until the control socket closes or the launcher dies."""
        signals, woken = os.pipe()
        os.set_blocking(signals, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # the pipe tells
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        poller = select.poll()
        poller.register(self.reports, select.POLLIN)
        poller.register(signals, select.POLLIN)
        poller.register(self.control.fileno(), 0)  # only its hang-up: jobs are for the wardens
        announced = False
        while True:
            while len(self.slots) < self.config.idle:
                self._fork_warden()
            events = dict(poller.poll())
            if self.control.fileno() in events:
                return
            if self.reports in events:
                self._hear()
            if signals in events:
                if signal.SIGTERM in os.read(signals, 4096):
                    return
                self._bury()
            if not announced and self.ready:
                self.control.send(b"ready")
                announced = True

    def _fork_warden(self) -> None:
        slot = self.next_slot
        self.next_slot = (slot + 1) % (1 << 32)
        isolated = self.config.isolation == "namespaces"
        if not isolated:
            # Held back until the child is known here, and in the child until it can clean up.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = kernel.clone_into_namespaces() if isolated else os.fork()
        if pid == 0:
            os.close(self.reports)
            signal.set_wakeup_fd(-1)
            warden.main(self.config, self.filter, self.control, lambda: self._tell(slot))
        self.slots[slot] = pid
        self.wardens.add(pid)
        if not isolated:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def end_wardens(self) -> None:
        """Have each warden kill its run and wipe its folder; then remove the common folder."""
        for pid in self.wardens:
            os.kill(pid, signal.SIGTERM)
        while True:
            self._end_orphans()
            try:
                os.wait()
            except ChildProcessError:
                break
        if self.config.scratch:
            surroundings.remove_tree(self.config.scratch)

    def _end_orphans(self) -> None:
        """Kill what wardens left that were killed themselves; each death may leave more."""
        if self.config.isolation == "namespaces":
            return  # there they die with their process 1
        for pid in watchdog.children(os.getpid()):
            if pid in self.wardens:
                continue
            with contextlib.suppress(ProcessLookupError):
                group = os.getpgid(pid)  # a run is one group, which no fork escapes
                if group != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)

    def _tell(self, slot: int) -> None:
        os.write(self.report, struct.pack("=I", slot))

    def _hear(self) -> None:
        data = os.read(self.reports, 4 * 256)
        for (slot,) in struct.iter_unpack("=I", data):
            if slot in self.ready:
                self.ready.discard(slot)
                self.slots.pop(slot, None)
            else:
                self.ready.add(slot)
                self.failures = 0

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if status:
                self._end_orphans()
            self.wardens.discard(pid)
            for slot in [s for s, p in self.slots.items() if p == pid]:
                self._hear_pending()
                if slot in self.slots:
                    del self.slots[slot]
                    self.ready.discard(slot)
                    self.failures += 1
            if self.failures >= _MAX_FAILURES:
                raise RuntimeError(f"{_MAX_FAILURES} children in a row died during set-up")

    def _hear_pending(self) -> None:
        # A warden that took its job and ended may be buried before its last report is read.
        if select.select([self.reports], [], [], 0)[0]:
            self._hear()
