"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SPIN_COUNT = 5000
"""Rounds in which a waiting thread looks again: longer than the time between two operations of a
model. On two cores, a forward of 64 rows and 14.6M parameters by two threads was 1.31, 1.46 and
1.48 times as fast as by one with 2,000, 5,000 and 20,000 rounds; 1,500 small layers beside four
busy processes took 1.4, 0.8 and 7.7 s."""


def usable_cores() -> int:
    """The cores that the process may be scheduled on, as far as its control groups give it time.

    ``OMP_NUM_THREADS``, where it is set, bounds them.
    """
    bounds = [len(os.sched_getaffinity(0)), *_quotas(CGROUPS, Path("/proc/self/cgroup"))]
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal():
        bounds.append(int(asked))
    return max(1, min(bounds))


def bound_spinning() -> None:
    """Have OpenMP's waiting threads sleep soon; to be called before torch is loaded.

    They wait busily for milliseconds by default. Where other processes want the same cores, the
    thread that they wait for is kept from running: small layers on two threads took more than 30
    times as long as on one. ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY``, where one is set, wins.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def _quotas(root: Path, membership: Path) -> list[int]:
    """Whole cores that ``cpu.max`` gives the process's control group and each one around it."""
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    # Version 2 is the line of hierarchy 0. In a container its path may begin outside of the root.
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
