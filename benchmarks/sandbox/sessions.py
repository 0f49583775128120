"""Sessions: calls per second, milliseconds to open and to fork one (40 MB), cost of 64 idle ones.

    python -m benchmarks.sandbox.sessions --backend bwrap --seconds 3 --rounds 3

Sessions alternate with a plain interpreter on a pair of pipes. Prints one JSON line: medians and
bests over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time

from benchmarks.sandbox.throughput import rate
from tools.sandbox import Limits, Sandbox, make_sandbox
from tools.sandbox.inside.supervisor import process_tree, usage

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
    """Calls per second of all sessions together."""
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
    """Milliseconds per fork of a session with a large heap."""
    taken = []
    async with sandbox.session() as session:
        await session.run(HEAP)
        for _ in range(times):
            started = time.perf_counter()
            twin = await session.fork()
            taken.append(1000 * (time.perf_counter() - started))
            await twin.close()
    return taken


async def idle_share(sandbox: Sandbox, sessions: int, seconds: float) -> float:
    """The share of a core that this process's children use while ``sessions`` sessions are idle."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(sessions):
            session = await stack.enter_async_context(sandbox.session())
            assert (await session.run("1 + 1")).value == "2"
        await asyncio.sleep(1)
        before, started = processor_seconds(), time.monotonic()
        await asyncio.sleep(seconds)
        return (processor_seconds() - before) / (time.monotonic() - started)


def processor_seconds() -> float:
    """Processor seconds of this process's descendants so far."""
    total = 0.0
    for pid in process_tree.descendants():
        with contextlib.suppress(OSError):  # it has ended
            total += usage.of(pid).cpu_s
    return total


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
        "64_idle_share_of_a_core": round(await idle_share(sandbox, 64, 7 * seconds), 3),
    }


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    async with make_sandbox(
        arguments.backend, Limits(wall_s=30.0), python=arguments.python
    ) as sandbox:
        return {
            "backend": sandbox.backend,
            "isolation": sandbox.isolation,
            **await measure_sessions(sandbox, arguments.seconds, arguments.rounds),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--python", default=None)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
