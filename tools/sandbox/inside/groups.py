"""Process groups in place of the sessions that a program asks for.

The filter refuses ``setsid``. Where Linux shares the processor among sessions (autogroup), a run of
ten sessions would get ten shares of it. Programs ask for a session in order to signal a child and
its children together, for which a process group serves as well.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import os
from typing import Any

_NEW_SESSION, _GROUP = 15, 16
"""Places of ``start_new_session`` and ``process_group`` among the arguments of ``fork_exec``."""
_fork_exec = _posixsubprocess.fork_exec
make_session = os.setsid
"""The system call, for a process that has no filter yet."""


def replace_sessions() -> None:
    """Have ``os.setsid`` and ``subprocess`` make process groups, in this process and its forks."""
    os.setsid = _setsid
    _posixsubprocess.fork_exec = _fork_exec_in_group


def _setsid() -> None:
    if os.getpgrp() == os.getpid():  # a session is not for the leader of a group either
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    os.setpgid(0, 0)


def _fork_exec_in_group(*arguments: Any) -> int:
    if arguments[_NEW_SESSION]:
        group = max(0, arguments[_GROUP])  # -1: none was asked for
        arguments = (*arguments[:_NEW_SESSION], False, group, *arguments[_GROUP + 1 :])
    pid: int = _fork_exec(*arguments)
    return pid
