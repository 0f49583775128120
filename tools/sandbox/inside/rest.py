"""How the processes of an idle branch are stopped, and kept so."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from tools.sandbox.inside import usage
from tools.sandbox.inside.branch import Branch
from tools.sandbox.inside.child import send_signal

_MAX_WOKEN = 3
"""Looks at which processes had gone on before their branch is ended."""
Members = Callable[[Branch], list[int]]


def stop(branch: Branch, members: Members) -> str:
    """Stop every process of an idle branch. What it has it keeps: a last look says if it may."""
    done: set[int] = {os.getpid()}
    while new := set(members(branch)) - done:
        for pid in new:
            send_signal(pid, signal.SIGSTOP)
        done |= new
    branch.stopped = True
    branch.progress = _progress(branch, members)
    branch.looked = time.monotonic()
    return branch.guard.tick(now=True) if branch.guard else ""


def goes_on(branch: Branch, members: Members) -> bool:
    """Stop again what went on between calls. True: for the third time, or beyond its limits.

    On a busy machine a thread may get no processor for long, not even to stop. One that has done
    nothing since it was told to has not gone on.
    """
    now, before = _progress(branch, members), branch.progress
    branch.woken += any(before.get(task) != done for task, done in now.items())
    trouble = stop(branch, members) if now else ""
    branch.looked = time.monotonic()
    return branch.woken >= _MAX_WOKEN or bool(trouble)


def _progress(branch: Branch, members: Members) -> dict[int, tuple[int, int]]:
    """What its threads that are not stopped have done so far."""
    found: dict[int, tuple[int, int]] = {}
    for pid in members(branch):
        with contextlib.suppress(OSError):  # it has ended
            found |= usage.progress(pid)
    return found
