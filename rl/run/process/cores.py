"""The cores that this process may use, other work on them, and how long OpenMP's threads spin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SPIN_COUNT = 5000
"""Number of rounds that a waiting thread spins before it sleeps. These rounds take longer than the
pause between two operations of a model. We measured 2,000, 5,000 and 20,000 rounds on two cores. A
forward pass (64 rows, 14.6M parameters) by two threads was 1.31, 1.46 and 1.48 times as fast as by
one thread. Beside four busy processes, 1,500 small layers took 1.4, 0.8 and 7.7 s."""


def usable_cores() -> int:
    """The number of cores in the process's affinity, limited by the quotas of its control groups.

    If ``OMP_NUM_THREADS`` is set, the result is at most its value.
    """
    bounds = [len(os.sched_getaffinity(0)), *_quotas(CGROUPS, Path("/proc/self/cgroup"))]
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal():
        bounds.append(int(asked))
    return max(1, min(bounds))


def report_busy(threads: int, report: Callable[[str], None]) -> None:
    """Report a line if ``threads`` share a machine whose load average is above its cores."""
    load, there = os.getloadavg()[0], os.cpu_count() or 1
    if threads > 1 and load > there:
        report(
            f"the machine is busy (load average {load:.1f}, {there} cores): {threads} threads wait "
            f"for each other and can take several times as long as one; try threads=1"
        )


def bound_spinning() -> None:
    """Shorten the spinning of OpenMP's waiting threads. Call this before torch is loaded.

    By default, waiting threads spin for milliseconds. If other processes use the same cores, a
    spinning thread keeps the thread that it waits for from running: small layers on two threads
    took more than 30 times as long as on one thread. If the user sets ``GOMP_SPINCOUNT`` or
    ``OMP_WAIT_POLICY``, that setting is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def _quotas(root: Path, membership: Path) -> list[int]:
    """Whole cores that ``cpu.max`` allows, in the process's control group and in each parent."""
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    # The line of hierarchy 0 is version 2. In a container its path may start outside of the root.
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    quotas = []
    for path in paths:
        own = root / path.removeprefix("../")
        for folder in [own, *own.parents]:
            if folder == root or root in folder.parents:
                quotas += _quota(folder / "cpu.max")
    return quotas


def _quota(file: Path) -> list[int]:
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return [int(quota) // int(period)] if quota != "max" else []
    except (OSError, ValueError):
        return []
