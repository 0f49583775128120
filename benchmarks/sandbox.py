"""Runs per second: a plain interpreter, a sandboxed run, a grade by ten calls, one by an assert.

And sessions: calls per second of one and of eight, beside a plain interpreter on a pair of pipes;
milliseconds until the first answer, and for the fork of a session with 40 MB of objects.

    python -m benchmarks.sandbox --backend bwrap --concurrency 16 --seconds 3 --rounds 3

All are measured in turns, so that other load on the machine hits them alike. Prints one JSON
line: medians over the rounds, and ratios to the plain interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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


ECHO = """
import sys
names = {}
for line in sys.stdin:
    sys.stdout.write(repr(eval(line, names)) + "\\n")
    sys.stdout.flush()
"""
"""The least that keeps variables: an unconfined interpreter that evaluates lines."""
HEAP = "heap = [str(n) * 8 for n in range(420_000)]"
"""About 40 MB."""


async def plain_calls(seconds: float) -> float:
    """Lines per second that one plain interpreter evaluates."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", ECHO, stdin=-1, stdout=-1
    )
    assert process.stdin is not None and process.stdout is not None

    async def call() -> None:
        process.stdin.write(b"1 + 1\n")
        assert await process.stdout.readline() == b"2\n"

    value = await rate(call, 1, seconds)
    process.stdin.close()
    await process.wait()
    return value


async def session_calls(sandbox: Sandbox, sessions: int, seconds: float) -> float:
    """Calls per second of so many sessions together."""
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(sandbox.session()) for _ in range(sessions)]
        waiting = list(opened)

        async def call() -> None:
            session = waiting.pop()
            assert (await session.run("1 + 1")).value == "2"
            waiting.append(session)

        return await rate(call, sessions, seconds)


async def open_ms(sandbox: Sandbox) -> float:
    """Milliseconds to open a session and have its first answer."""
    started = time.perf_counter()
    session = sandbox.session()
    await session.start()
    assert (await session.run("1 + 1")).value == "2"
    taken = 1000 * (time.perf_counter() - started)
    await session.close()
    return taken


async def fork_ms(sandbox: Sandbox, times: int) -> list[float]:
    """Milliseconds for each of so many forks of a session with a large heap."""
    taken = []
    async with sandbox.session() as session:
        await session.run(HEAP)
        for _ in range(times):
            started = time.perf_counter()
            twin = await session.fork()
            taken.append(1000 * (time.perf_counter() - started))
            await twin.close()
    return taken


async def measure_sessions(sandbox: Sandbox, seconds: float, rounds: int) -> dict[str, object]:
    rates: dict[str, list[float]] = {"plain": [], "1_session": [], "8_sessions": []}
    opens: list[float] = []
    forks: list[float] = []
    for _ in range(rounds):
        rates["plain"].append(await plain_calls(seconds))
        rates["1_session"].append(await session_calls(sandbox, 1, seconds))
        rates["8_sessions"].append(await session_calls(sandbox, 8, seconds))
        opens += [await open_ms(sandbox) for _ in range(20)]
        forks += await fork_ms(sandbox, 20)
    return {
        "calls_per_second": {n: round(statistics.median(v)) for n, v in rates.items()},
        "best_calls_per_second": {n: round(max(v)) for n, v in rates.items()},
        "open_and_first_call_ms": round(statistics.median(opens), 2),
        "fork_40_mb_ms": round(statistics.median(forks), 2),
        "fork_40_mb_p95_ms": round(statistics.quantiles(forks, n=20)[-1], 2),
    }


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
            "sessions": await measure_sessions(sandbox, arguments.seconds, arguments.rounds),
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
