"""Delay of the host's event loop by hostile answers, and correctness of honest grades beside them.

    python -m benchmarks.sandbox.hostile_answers --backend bwrap --rounds 5

Six hostile grades of one kind run beside four honest ones of twenty tests. A coroutine repeatedly
sleeps for a millisecond; its largest delay is the longest wait of any other coroutine of the loop.
``honest`` runs no hostile grades and shows the effect of other load. Prints one JSON document: for
each kind the median and the maximum over the rounds of the largest delay, in milliseconds, and
whether every honest grade passed. The exit code is 1 if a median exceeds 50 ms or an honest grade
fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator

from tools.sandbox import CallTest, Limits, Sandbox, make_sandbox

MAX_MS = 50.0
HOSTILE = {
    "empty sets": "def f(x): return [set() for _ in range(45_000)]",
    "pairs": "def f(x): return {n: () for n in range(24_000)}",
    "nothings": "def f(x): return [None] * 180_000",
    "texts of brackets": "def f(x): return ['[[[,'] * 49_000",
    "texts of quotes": "def f(x): return ['\"'] * 45_000",
    "keys that meet in a table": "def f(x): return {n << 44 for n in range(40_000)}",
    "a long integer": "def f(x): return 1 << 4_000_000",
    "too many values": "def f(x): return [set() for _ in range(90_000)]",
    "a long error": "def f(x): raise ValueError('x' * 900_000)",
}
HONEST = "def f(x): return x"
_TICK_S = 0.001
_NUM_HOSTILE, _NUM_HONEST = 6, 4
_LIMITS = Limits(wall_s=60.0, cpu_s=60.0)


@contextlib.asynccontextmanager
async def delays() -> AsyncIterator[list[float]]:
    """Seconds by which each tick of the loop meanwhile was late."""
    found: list[float] = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_S)
            found.append(time.monotonic() - before - _TICK_S)

    ticking = asyncio.create_task(tick())
    try:
        yield found
    finally:
        ticking.cancel()


async def measure(sandbox: Sandbox, source: str | None) -> tuple[float, bool]:
    """The largest delay in milliseconds, and whether every verdict was right."""
    hostile = [] if source is None else [source] * _NUM_HOSTILE
    tests = [CallTest((n,), n) for n in range(20)]
    async with delays() as found:
        grades = [sandbox.grade(HONEST, tests, "f", limits=_LIMITS) for _ in range(_NUM_HONEST)]
        grades += [sandbox.grade(one, tests[:3], "f", limits=_LIMITS) for one in hostile]
        verdicts = await asyncio.gather(*grades)
        expected = [True] * _NUM_HONEST + [False] * len(hostile)
    return 1000 * max(found), [verdict.passed for verdict in verdicts] == expected


async def report(options: argparse.Namespace) -> dict[str, object]:
    worst: dict[str, list[float]] = {name: [] for name in ("honest", *HOSTILE)}
    right = True
    async with make_sandbox(
        options.backend, _LIMITS, python=options.python, workers=_NUM_HOSTILE + _NUM_HONEST
    ) as sandbox:
        await measure(sandbox, None)
        for _ in range(options.rounds):
            for name in worst:
                largest, all_right = await measure(sandbox, HOSTILE.get(name))
                worst[name].append(largest)
                right = right and all_right
    medians = {name: statistics.median(values) for name, values in worst.items()}
    return {
        "backend": options.backend,
        "rounds": options.rounds,
        "load": round(os.getloadavg()[0], 1),
        "median_ms": {name: round(value, 1) for name, value in medians.items()},
        "largest_ms": {name: round(max(values), 1) for name, values in worst.items()},
        "right": right,
        "sound": right and max(medians.values()) <= MAX_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--python", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    result = asyncio.run(report(parser.parse_args()))
    print(json.dumps(result, indent=1))
    return 0 if result["sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
