"""Thousands of runs, half of them attacks: every honest answer is checked, and nothing may leak.

    python -m benchmarks.sandbox.soak --backend bwrap --runs 20000

Counts processes, descriptors, mounts, cgroups, containers, files and memory before the runs, after
every 2000 runs and at the end. Prints one JSON line. The exit code is 1 if something leaked, an
honest answer was wrong, an attack ended in a forbidden way, or the grader grew by more than 20 MB;
it is 2 if the backend does not work.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sandbox.soak_census import Census, Counter, adopt_orphans
from benchmarks.sandbox.soak_programs import HONEST, HOSTILE, MEMORY_MB, End, Kind
from tools.sandbox import Limits, Sandbox, SandboxFailure, SandboxUnavailable, make_sandbox

MAX_GROWTH_MB = 20.0
_SETTLE_S = 15.0
_COMPLAINTS_SHOWN = 5
RESULTS = Path(__file__).parents[1] / "results" / "sandbox_soak.json"


@dataclass(frozen=True)
class Plan:
    """The programs to run, and their concurrency."""

    backend: str
    python: str | None
    runs: int
    every: int
    """Runs between two censuses."""
    workers: int
    callers: int
    seed: int


@dataclass
class Report:
    """Result of a soak test."""

    runs: dict[str, int] = field(default_factory=collections.Counter)
    """Number of runs by kind."""
    ends: dict[str, int] = field(default_factory=collections.Counter)
    """Number of runs by kind and end."""
    complaints: list[str] = field(default_factory=list)
    failures: int = 0
    """``SandboxFailure``: none is expected."""
    leaks: list[str] = field(default_factory=list)
    censuses: dict[str, Census] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def growth_mb(self) -> float:
        """Growth of the grader's memory from the first open census to the largest one, in MiB."""
        first = self.censuses["open"].rss_mb
        return max(census.rss_mb for census in self.censuses.values()) - first

    @property
    def sound(self) -> bool:
        """Whether all went as it must."""
        troubles = self.complaints or self.failures or self.leaks
        return not troubles and self.growth_mb <= MAX_GROWTH_MB


async def soak(plan: Plan) -> Report:
    """Run everything on a new sandbox. No other process may use the folder ``TMPDIR``."""
    report, counter = Report(), Counter()
    rng = random.Random(plan.seed)
    report.censuses["before"] = counter.take()
    limits = Limits(wall_s=120.0, memory_mb=MEMORY_MB)
    started = time.monotonic()
    async with make_sandbox(
        plan.backend, limits, python=plan.python, workers=plan.workers
    ) as sandbox:
        await _settle(report, counter, "open")
        for done in range(0, plan.runs, plan.every):
            kinds = _drawn(rng, min(plan.every, plan.runs - done))
            await _batch(sandbox, kinds, plan, report, rng.randrange(1 << 30))
            await _settle(report, counter, f"{done + len(kinds)} runs", against="open")
    await _settle(report, counter, "closed", against="before")
    report.seconds = time.monotonic() - started
    return report


def _drawn(rng: random.Random, count: int) -> list[Kind]:
    """Equal numbers of honest and hostile kinds, in a random order."""
    drawn: list[Kind] = []
    for kinds, number in ((HONEST, count - count // 2), (HOSTILE, count // 2)):
        drawn += rng.choices(kinds, [kind.share for kind in kinds], k=number)
    rng.shuffle(drawn)
    return drawn


async def _batch(
    sandbox: Sandbox, kinds: list[Kind], plan: Plan, report: Report, seed: int
) -> None:
    pending = iter(enumerate(kinds))

    async def caller() -> None:
        for number, kind in pending:
            report.runs[kind.name] += 1
            try:
                end = await kind.act(sandbox, random.Random(seed + number))
            except SandboxFailure as error:
                report.failures += 1
                end = End("sandbox_failure", repr(error))
            report.ends[f"{kind.name}: {end.how}"] += 1
            if end.complaint:
                report.complaints.append(f"{kind.name}: {end.complaint}")

    await asyncio.gather(*(caller() for _ in range(plan.callers)))


async def _settle(report: Report, counter: Counter, name: str, against: str | None = None) -> None:
    """Take a census once nothing is left over, or once that has been waited for long enough."""
    await asyncio.sleep(0.3)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        gc.collect()
        report.censuses[name] = census = counter.take()
        if against is None:
            return
        leaks = census.leaks(report.censuses[against], closed=name == "closed")
        if not leaks or time.monotonic() > deadline:
            report.leaks += [f"{name}: {leak}" for leak in leaks]
            return
        await asyncio.sleep(0.5)


def summary(plan: Plan, report: Report) -> dict[str, Any]:
    """For a line of JSON."""
    return {
        "backend": plan.backend,
        "runs": sum(report.runs.values()),
        "attacks": sum(report.runs[kind.name] for kind in HOSTILE),
        "sound": report.sound,
        "leaks": report.leaks,
        "wrong": len(report.complaints),
        "wrong_first": report.complaints[:_COMPLAINTS_SHOWN],
        "sandbox_failures": report.failures,
        "grader_growth_mb": round(report.growth_mb, 1),
        "seconds": round(report.seconds, 1),
        "runs_per_second": round(sum(report.runs.values()) / report.seconds, 1),
        "workers": plan.workers,
        "callers": plan.callers,
        "seed": plan.seed,
        "ends": dict(sorted(report.ends.items())),
        "censuses": {
            name: {k: round(v, 1) for k, v in census.numbers().items()}
            for name, census in report.censuses.items()
        },
        "user": "root" if os.geteuid() == 0 else "other",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }


def _record(result: dict[str, Any]) -> None:
    """Keep the newest result of each backend."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**known, result["backend"]: result}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--python", default=None, type=lambda text: text or None)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--callers", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help=f"keep the result in {RESULTS.name}")
    options = vars(parser.parse_args())
    record = options.pop("record")
    folder = tempfile.mkdtemp(prefix="soak-tmp-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    adopt_orphans()
    try:
        plan = Plan(**options)
        report = asyncio.run(soak(plan))
    except SandboxUnavailable as error:
        parser.exit(2, f"{error}\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = summary(plan, report)
    if record:
        _record(result)
    print(json.dumps(result))
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())
