"""Finds the Python interpreter that runs programs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.sandbox.errors import SandboxUnavailable

UNPRIVILEGED_ID = 61184
"""User and group id as which root runs programs: the first dynamic id of systemd."""

_PROBE = (
    "import json,os,sys;print(json.dumps({'path':os.path.realpath(sys._base_executable),"
    "'prefix':os.path.realpath(sys.base_prefix),'version':list(sys.version_info[:2])}))"
)


@dataclass(frozen=True)
class Interpreter:
    """A CPython interpreter with its standard library."""

    path: str
    prefix: str
    reachable: bool
    """Whether the user that runs programs is allowed to execute the interpreter. Root runs programs
    as another user."""


@functools.cache
def find(python: str | None) -> Interpreter:
    """The interpreter at ``python``, or the one that runs this process if ``python`` is None.

    Raises:
        SandboxUnavailable: the interpreter does not run, or is older than 3.11.
    """
    command = [python or sys.executable, "-I", "-S", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=True, env={})
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"python ({command[0]}) does not run: {error}") from None
    found = json.loads(done.stdout)
    if found["version"] < [3, 11]:
        raise SandboxUnavailable(
            f"python ({command[0]}) is version {found['version']}: 3.11 or newer is needed"
        )
    return Interpreter(found["path"], found["prefix"], _reachable(found["path"]))


def _reachable(path: str) -> bool:
    if os.geteuid() != 0:
        return True
    return can_run(path)


def can_run(path: str) -> bool:
    """Whether every user is allowed to execute the program at ``path``."""
    return all(parent.stat().st_mode & 0o001 for parent in (Path(path), *Path(path).parents))
