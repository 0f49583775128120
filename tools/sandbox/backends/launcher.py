"""The protocol by which a backend starts zygotes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tools.sandbox.limits import Limits


@dataclass(frozen=True)
class BackendOptions:
    """Those options of ``make_sandbox`` that the backend uses."""

    python: str | None
    """Path of the interpreter that runs programs, or None for the current one."""
    runtime: str | None = None
    """Container runtime, or None for the engine's default."""


ENVIRONMENT: Mapping[str, str] = {"MALLOC_ARENA_MAX": "2", "LD_BIND_NOW": "1"}
"""Environment variables of zygotes. With ``LD_BIND_NOW``, the linker binds symbols once instead of
after each fork."""
LEVELS = ("none", "restricted", "namespaces")
"""Isolation levels, weakest first."""


class Launcher(Protocol):
    """A backend: starts zygotes of one isolation level."""

    backend: str
    isolation: str
    enforced_by: str
    """Names of the mechanisms that enforce the limits of memory and processes."""
    start_s: float
    """Seconds after its launch within which a zygote must be ready."""
    lost: tuple[str, ...]
    """Descriptions of the isolation level's guarantees that this machine cannot give. Set by
    ``launch``."""

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start a zygote that takes jobs from ``control_fd`` and ends with this thread.

        The returned process leads a new process group. The caller kills the group after the
        process's end.

        Raises:
            OSError: the zygote cannot be started.
            SandboxUnavailable: a requirement is missing; the message names the fix.
        """
        ...

    def started(self, pid: int) -> None:
        """Called when the zygote is ready."""
        ...

    def cleared(self, pid: int) -> bool:
        """Remove what an ended zygote left behind.

        Returns False if this must be called again later.
        """
        ...
