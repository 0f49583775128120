"""Makes ``os.setsid`` and ``subprocess`` create process groups instead of Unix sessions.

The filter denies ``setsid``: the scheduler (autogroup) may give each Unix session an equal share,
so that a run of ten sessions would get ten shares. Programs use Unix sessions to signal a child
together with its children. A process group suffices for that.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import os
from typing import Any

_NEW_SESSION, _GROUP = 15, 16
"""Indices of ``start_new_session`` and ``process_group`` among the arguments of ``fork_exec``."""
_fork_exec = _posixsubprocess.fork_exec
make_session = os.setsid
"""The real ``os.setsid``, for a process that does not have the system-call filter yet."""


def replace_sessions() -> None:
    """Make ``os.setsid`` and ``subprocess`` create process groups, here and in forked processes."""
    os.setsid = _setsid
    _posixsubprocess.fork_exec = _fork_exec_in_group


def _setsid() -> None:
    if os.getpgrp() == os.getpid():  # the system call fails for a group leader too
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    os.setpgid(0, 0)


def _fork_exec_in_group(*arguments: Any) -> int:
    if arguments[_NEW_SESSION]:
        group = max(0, arguments[_GROUP])  # -1: the caller requested no group
        arguments = (*arguments[:_NEW_SESSION], False, group, *arguments[_GROUP + 1 :])
    pid: int = _fork_exec(*arguments)
    return pid
