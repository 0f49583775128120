"""How a zygote is started: the one thing in which backends differ."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tools.sandbox.limits import Limits


@dataclass(frozen=True)
class Wishes:
    """What a backend is made for."""

    python: str | None
    """Path of the interpreter that runs programs; None: this one."""
    runtime: str | None = None
    """Of containers; None: the engine's default."""


ENVIRONMENT: Mapping[str, str] = {"MALLOC_ARENA_MAX": "2", "LD_BIND_NOW": "1"}
"""Of zygotes. Symbols are bound at the start: later, each fork would bind them again."""
LEVELS = ("none", "restricted", "namespaces")
"""Isolation, weakest first."""


class Launcher(Protocol):
    """A backend: starts zygotes of one isolation level."""

    backend: str
    isolation: str
    enforced_by: str
    """What holds the limits of memory and processes."""
    start_s: float
    """Seconds within which a zygote must be ready."""
    lost: tuple[str, ...]
    """What its level promises elsewhere and this machine does not give, known after ``launch``."""

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start a zygote that takes jobs from ``control_fd``. It ends with this thread.

        The process returned leads a group of its own, which is killed when it has ended.

        Raises:
            OSError: it cannot be started.
            SandboxUnavailable: something it needs is missing; the message names the fix.
        """
        ...

    def started(self, pid: int) -> None:
        """The zygote is ready."""
        ...

    def cleared(self, pid: int) -> bool:
        """Whether nothing is left on disk of an ended zygote; ask again if not."""
        ...
