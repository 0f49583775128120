"""Stops the processes of an idle branch, and keeps them stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from tools.sandbox.inside.supervisor import usage
from tools.sandbox.inside.supervisor.branch import Branch
from tools.sandbox.inside.supervisor.processes import send_signal

_MAX_WAKEUPS = 3
"""Number of checks that find resumed processes, after which the branch is ended."""
Members = Callable[[Branch], list[int]]


def stop(branch: Branch, members: Members) -> str:
    """Stop every process of an idle branch. If it exceeds a limit, return the status, else ""."""
    done: set[int] = {os.getpid()}
    while new := set(members(branch)) - done:
        for pid in new:
            send_signal(pid, signal.SIGSTOP)
        done |= new
    branch.stopped = True
    branch.progress = _progress(branch, members)
    branch.checked = time.monotonic()
    return branch.guard.tick(now=True) if branch.guard else ""


def was_resumed(branch: Branch, members: Members) -> bool:
    """Stop processes that resumed between calls. Returns whether the branch must be ended.

    A branch must be ended if its processes resumed for the third time, or if they exceed a limit.
    On a busy machine, a thread can get no processor for long, not even to stop. Such a thread has
    made no progress since the stop signal and does not count as resumed.
    """
    now, before = _progress(branch, members), branch.progress
    branch.wakeups += any(before.get(task) != done for task, done in now.items())
    trouble = stop(branch, members) if now else ""
    branch.checked = time.monotonic()
    return branch.wakeups >= _MAX_WAKEUPS or bool(trouble)


def _progress(branch: Branch, members: Members) -> dict[int, tuple[int, int]]:
    """The progress of those threads of a branch that are not stopped."""
    found: dict[int, tuple[int, int]] = {}
    for pid in members(branch):
        with contextlib.suppress(OSError):  # it has ended
            found |= usage.progress(pid)
    return found
