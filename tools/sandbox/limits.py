"""Limits of a program: time, memory, processes, output and files."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run. The defaults fit small test programs.

    A sandbox has default limits; the caller of one run can pass other limits. The limits of time,
    output and returned files can be raised and lowered. The limits of memory and processes can only
    be lowered. The disk limit cannot change, because the file system is mounted before the run.

    Raises:
        ValueError: a limit is outside its range.
    """

    wall_s: float = 5.0
    """Seconds from the start of the program to its end."""
    cpu_s: float | None = None
    """Processor seconds of all processes together. None means ``wall_s`` seconds: one core for the
    whole run. The kernel applies the same limit, rounded up to whole seconds, to each process."""
    memory_mb: int = 256
    """Memory in MiB of all processes together. One process can use all of it."""
    processes: int = 16
    """Maximum number of processes and threads alive at the same time, including the program
    itself."""
    output_kb: int = 1024
    """KiB of standard output, and as many KiB of standard error. The sandbox ends a run that writes
    more."""
    disk_mb: int = 64
    """MiB on disk of all files in the run's folder together. One file can use all of it."""
    returned_kb: int = 4096
    """KiB of all files together that ``run(collect=...)`` returns, including their paths."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "cpu_s":
                continue
            low, high = _RANGES[field.name]
            whole = field.name not in _FRACTIONAL
            number = isinstance(value, int if whole else int | float)
            if isinstance(value, bool) or not number or not low <= value <= high:
                kind = "a whole number " if whole else ""
                raise ValueError(
                    f"limits.{field.name} ({value!r:.40}) must be {kind}in [{low}, {high}]"
                )

    @property
    def total_cpu_s(self) -> float:
        """Limit of processor seconds for all processes of a run together."""
        return self.wall_s if self.cpu_s is None else self.cpu_s

    @property
    def cpu_seconds(self) -> int:
        """Limit of processor seconds for one process, in whole seconds."""
        return math.ceil(self.total_cpu_s)

    def check_within(self, outer: Limits) -> None:
        """Check these limits of one run against the sandbox's limits.

        Raises:
            ValueError: the limit of memory or processes exceeds that of the sandbox, or the disk
                limit differs.
        """
        for name in ("memory_mb", "processes"):
            inner, bound = getattr(self, name), getattr(outer, name)
            if inner > bound:
                raise ValueError(
                    f"limits.{name} ({inner}) of a run must not exceed the sandbox's ({bound}): "
                    "make the sandbox with the higher limit"
                )
        if self.disk_mb != outer.disk_mb:
            raise ValueError(
                f"limits.disk_mb ({self.disk_mb}) of a run must equal the sandbox's "
                f"({outer.disk_mb}): make the sandbox with that limit"
            )


_MAX_SESSION_S = 86_400.0


def check_session_times(idle_s: float, life_s: float) -> None:
    """Check the times of a session.

    Args:
        idle_s: seconds without a call after which the session ends.
        life_s: seconds after which the session ends in any case.

    Raises:
        ValueError: a time is outside its range.
    """
    for name, seconds in (("idle_s", idle_s), ("life_s", life_s)):
        if not 0 < seconds <= _MAX_SESSION_S:
            raise ValueError(f"{name} ({seconds}) must be in (0, {_MAX_SESSION_S:g}]")


_FRACTIONAL = ("wall_s", "cpu_s")
_RANGES: dict[str, tuple[float, float]] = {
    "wall_s": (0.05, 3600),
    "cpu_s": (0.05, 3600),
    "memory_mb": (32, 1 << 20),
    "processes": (1, 4096),
    "output_kb": (1, 1 << 16),
    "disk_mb": (1, 1 << 16),
    "returned_kb": (1, 1 << 18),
}
