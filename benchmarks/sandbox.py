"""Runs per second: a plain interpreter, a sandboxed run, a grade by ten calls, one by an assert.

    python -m benchmarks.sandbox --backend bwrap --concurrency 16 --seconds 3 --rounds 3

The three are measured in turns, so that other load on the machine hits them alike. Prints one JSON
line: medians over the rounds, and ratios to the plain interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from tools.sandbox import AssertTest, CallTest, Limits, Sandbox, Status, make_sandbox

PROGRAM = "print(1)"
SUBMISSION = "def total(xs):\n    return sum(xs)\n"
CALLS = [CallTest((list(range(n)),), n * (n - 1) // 2) for n in range(10)]
ASSERTS = [AssertTest(f"assert total(list(range({n}))) == {n * (n - 1) // 2}") for n in range(10)]


async def plain() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", PROGRAM, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"1\n"


async def run(sandbox: Sandbox) -> None:
    result = await sandbox.run(PROGRAM)
    assert (result.status, result.stdout) == (Status.OK, "1\n")


async def grade_calls(sandbox: Sandbox) -> None:
    assert (await sandbox.grade(SUBMISSION, CALLS, "total")).passed


async def grade_asserts(sandbox: Sandbox) -> None:
    assert (await sandbox.grade(SUBMISSION, ASSERTS, "total")).passed


async def rate(act: Callable[[], Awaitable[None]], concurrency: int, seconds: float) -> float:
    """Completed acts per second, with ``concurrency`` callers that each repeat it."""
    started = time.monotonic()
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.monotonic() - started < seconds:
            await act()
            done += 1

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return done / (time.monotonic() - started)


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    async with make_sandbox(
        arguments.backend, Limits(wall_s=30.0), python=arguments.python
    ) as sandbox:
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "plain": plain,
            "run": lambda: run(sandbox),
            "grade_10_calls": lambda: grade_calls(sandbox),
            "grade_10_asserts": lambda: grade_asserts(sandbox),
        }
        rates: dict[str, list[float]] = {name: [] for name in acts}
        for _ in range(arguments.rounds):
            for name, act in acts.items():
                rates[name].append(await rate(act, arguments.concurrency, arguments.seconds))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        return {
            "backend": sandbox.backend,
            "isolation": sandbox.isolation,
            "concurrency": arguments.concurrency,
            "workers": sandbox.workers,
            "per_second": {name: round(value, 1) for name, value in medians.items()},
            "ratio_to_plain": {n: round(v / medians["plain"], 3) for n, v in medians.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--python", default=None)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
