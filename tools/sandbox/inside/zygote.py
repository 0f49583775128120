"""The zygote: a process with a loaded interpreter that forks supervisors. It runs no program.

Three processes serve a run. The zygote (this file) forks supervisors. A supervisor (``supervisor``)
is trusted and owns one run. It forks the program's process (``program``), which confines itself and
waits for a request. Requests go directly to a waiting supervisor: all supervisors block on one
control socket, and the kernel wakes one of them.
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
from dataclasses import replace

from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.program import main as program
from tools.sandbox.inside.program import process_groups
from tools.sandbox.inside.supervisor import main as supervisor
from tools.sandbox.inside.supervisor import process_tree
from tools.sandbox.inside.workdir import remove_tree

_MAX_FAILURES = 5
"""Number of supervisors, dying in a row before they are ready, after which the zygote fails."""


def main(settings: str) -> None:
    """Fork supervisors until the control socket closes.

    Args:
        settings: a ``Config`` as JSON.
    """
    config = Config(**json.loads(settings))
    kernel.set_dumpable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if config.parent_pid:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until ``serve`` handles it
        kernel.die_with_parent(signal.SIGTERM)
        if os.getppid() != config.parent_pid:
            os._exit(1)
    if config.group_fd >= 0:
        with contextlib.suppress(OSError):  # the launcher checks whether this succeeded
            os.write(config.group_fd, b"0")
        os.close(config.group_fd)
    program.prepare()
    if config.isolation == "namespaces":
        process_groups.replace_sessions()
        # Only supervisors keep it: in the /proc of a run, nothing may be written.
        config = replace(config, proc_fd=os.open("/proc", os.O_PATH | os.O_DIRECTORY))
    else:
        kernel.adopt_orphans()  # the processes of a killed supervisor
    control = socket.socket(fileno=config.control_fd)
    if config.seccomp:
        kernel.no_new_privileges()
        kernel.Filter(bytes.fromhex(config.seccomp[0])).install()
    supervisor.warm_up(config)
    gc.collect()
    gc.disable()
    gc.freeze()
    zygote = _Zygote(config, control)
    status = 0
    try:
        zygote.serve()
    except BaseException as error:
        supervisor.report_error(error)
        status = 1
    if config.isolation != "namespaces":
        zygote.end_supervisors()
    os._exit(status)


class _Zygote:
    def __init__(self, config: Config, control: socket.socket) -> None:
        self.config = config
        self.control = control
        self.filter = kernel.Filter(bytes.fromhex(config.seccomp[1])) if config.seccomp else None
        # A supervisor writes its slot's number here when it is ready, and again when it takes a
        # job: two reports free the slot.
        self.reports, self.report = os.pipe()
        self.slots: dict[int, int] = {}  # slot -> process id, until the job is taken
        self.ready: set[int] = set()
        self.supervisors: set[int] = set()  # all living ones, including those with a job
        self.next_slot = 0
        self.failures = 0

    def serve(self) -> None:
        """Keep ``Config.idle`` supervisors ready for jobs.

        Ends when the control socket closes or the launcher dies.
        """
        signals, wakeup = os.pipe()
        os.set_blocking(signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # the wakeup pipe reports it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        poller = select.poll()
        poller.register(self.reports, select.POLLIN)
        poller.register(signals, select.POLLIN)
        poller.register(self.control.fileno(), 0)  # hang-up only: jobs are for the supervisors
        announced = False
        while True:
            while len(self.slots) < self.config.idle:
                self._fork_supervisor()
            events = dict(poller.poll())
            if self.control.fileno() in events:
                return
            if self.reports in events:
                self._read_reports()
            if signals in events:
                if signal.SIGTERM in os.read(signals, 4096):
                    return
                self._reap()
            if not announced and self.ready:
                self.control.send(b"ready")
                announced = True

    def _fork_supervisor(self) -> None:
        slot = self.next_slot
        self.next_slot = (slot + 1) % (1 << 32)
        isolated = self.config.isolation == "namespaces"
        if not isolated:
            # Blocked until the child is recorded here, and in the child until it can clean up.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = kernel.clone_into_namespaces() if isolated else os.fork()
        if pid == 0:
            os.close(self.reports)
            signal.set_wakeup_fd(-1)
            supervisor.main(self.config, self.filter, self.control, lambda: self._report_slot(slot))
        self.slots[slot] = pid
        self.supervisors.add(pid)
        if not isolated:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def end_supervisors(self) -> None:
        """End all supervisors. Each one kills its run and deletes the run's folder first.

        Then delete the folder that held the runs' folders (``Config.scratch``), if there is one.
        """
        for pid in self.supervisors:
            os.kill(pid, signal.SIGTERM)
        while True:
            self._end_orphans()
            try:
                os.wait()
            except ChildProcessError:
                break
        if self.config.scratch:
            remove_tree(self.config.scratch)

    def _end_orphans(self) -> None:
        """Kill the processes that killed supervisors left. Each death can leave further orphans."""
        if self.config.isolation == "namespaces":
            return  # they die with their process 1
        for pid in process_tree.children(os.getpid()):
            if pid in self.supervisors:
                continue
            with contextlib.suppress(ProcessLookupError):
                group = os.getpgid(pid)  # a run is one process group, which no fork can leave
                if group != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)

    def _report_slot(self, slot: int) -> None:
        os.write(self.report, struct.pack("=I", slot))

    def _read_reports(self) -> None:
        data = os.read(self.reports, 4 * 256)
        for (slot,) in struct.iter_unpack("=I", data):
            if slot in self.ready:
                self.ready.discard(slot)
                self.slots.pop(slot, None)
            else:
                self.ready.add(slot)
                self.failures = 0

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if status:
                self._end_orphans()
            self.supervisors.discard(pid)
            for slot in [s for s, p in self.slots.items() if p == pid]:
                self._read_pending_reports()
                if slot in self.slots:
                    del self.slots[slot]
                    self.ready.discard(slot)
                    self.failures += 1
            if self.failures >= _MAX_FAILURES:
                raise RuntimeError(f"{_MAX_FAILURES} children in a row died during set-up")

    def _read_pending_reports(self) -> None:
        # A supervisor that took a job and ended may be reaped before its last report is read.
        if select.select([self.reports], [], [], 0)[0]:
            self._read_reports()
