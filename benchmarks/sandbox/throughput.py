"""Programs per second in a sandbox, compared with interpreters, ``docker run`` and GEM's tool.

    python -m benchmarks.sandbox.throughput --backends bwrap docker landlock --concurrency 16

Every backend runs `print(1)`, a program with ten checks, a grade by ten calls and a grade by ten
pieces of test code (in two sandboxes). The variants alternate, so that other load on the machine
affects all of them. `docker run` uses the image that the docker backend made. GEM's tool is
measured if it is installed (`pip install --no-deps gem-llm`). Prints one JSON document: medians
over ``--rounds 10`` of programs per second, of latencies, and of the ratio to plain interpreters
that run the same program (for grades, `print(1)`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tools.sandbox import AssertTest, CallTest, Limits, Sandbox, Status, make_sandbox

PRINT = "print(1)"
TEN = """
import math
from collections import Counter
from typing import List


def top_words(text: str, k: int) -> List[str]:
    counts = Counter(text.lower().split())
    return sorted(counts, key=lambda word: (-counts[word], word))[:k]


def primes(n: int) -> List[int]:
    return [p for p in range(2, n) if all(p % d for d in range(2, math.isqrt(p) + 1))]


assert top_words("a b a", 1) == ["a"]
assert top_words("a b a b c", 2) == ["a", "b"]
assert top_words("", 3) == []
assert top_words("The the THE dog", 1) == ["the"]
assert top_words("x y z", 2) == ["x", "y"]
assert primes(2) == []
assert primes(3) == [2]
assert primes(10) == [2, 3, 5, 7]
assert primes(20)[-1] == 19
assert len(primes(100)) == 25
print(1)
"""
SUBMISSION = "def total(xs):\n    return sum(xs)\n"
CALLS = [CallTest((list(range(n)),), n * (n - 1) // 2) for n in range(10)]
ASSERTS = [AssertTest(f"assert total(list(range({n}))) == {n * (n - 1) // 2}") for n in range(10)]

Act = Callable[[], Awaitable[None]]


@dataclass
class Rival:
    """One way to run something, and what its turns gave."""

    act: Act
    beside: str
    """The rival that its ratio is to."""
    concurrency: int
    rates: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)


async def execute(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out == b"1\n", out


async def run(sandbox: Sandbox, program: str) -> None:
    result = await sandbox.run(program)
    assert (result.status, result.stdout) == (Status.OK, "1\n"), result


async def grade(sandbox: Sandbox, tests: list[CallTest] | list[AssertTest]) -> None:
    assert (await sandbox.grade(SUBMISSION, tests, "total")).passed


async def gem(program: str, kind: str) -> None:
    from gem.utils.sandbox import run_python

    done, out, err = await asyncio.to_thread(run_python, program, kind)
    assert (done, out) == (True, "1\n"), err


async def rate(
    act: Act, concurrency: int, seconds: float, latencies_ms: list[float] | None = None
) -> float:
    """Completed acts per second, with ``concurrency`` callers that each repeat it."""
    started = time.monotonic()
    done = 0

    async def caller() -> None:
        nonlocal done
        while (now := time.monotonic()) - started < seconds:
            await act()
            done += 1
            if latencies_ms is not None:
                latencies_ms.append(1000 * (time.monotonic() - now))

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return done / (time.monotonic() - started)


def rivals(sandboxes: list[Sandbox], python: str, concurrency: int) -> dict[str, Rival]:
    """Everything that takes turns, by name."""
    bare = [python, "-I", "-S", "-c"]
    found = {
        "plain print": Rival(lambda: execute([*bare, PRINT]), "plain print", concurrency),
        "plain ten": Rival(lambda: execute([*bare, TEN]), "plain ten", concurrency),
    }
    for sandbox in sandboxes:
        for what, act, beside in (
            ("print", functools.partial(run, sandbox, PRINT), "plain print"),
            ("ten", functools.partial(run, sandbox, TEN), "plain ten"),
            ("grade by calls", functools.partial(grade, sandbox, CALLS), "plain print"),
            ("grade by asserts", functools.partial(grade, sandbox, ASSERTS), "plain print"),
        ):
            found[f"{sandbox.backend} {what}"] = Rival(act, beside, concurrency)
    if any(sandbox.backend == "docker" for sandbox in sandboxes):
        command = docker_run(python)
        found["docker run print"] = Rival(lambda: execute(command), "plain print", concurrency)
    if importlib.util.find_spec("gem") is not None:
        unconfined = functools.partial(gem, PRINT, "none")
        found["gem print"] = Rival(unconfined, "plain print", concurrency)
    return found


def docker_run(python: str) -> list[str]:
    """`docker run` of the image that the docker backend made when its sandbox started."""
    import docker

    from tools.sandbox.backends import interpreter
    from tools.sandbox.backends.docker import image

    inside = interpreter.find(python)
    made = image.ensure(docker.from_env().api, inside)
    return ["docker", "run", "--rm", "--network=none", made, inside.path, "-I", "-S", "-c", PRINT]


def report(found: dict[str, Rival]) -> dict[str, dict[str, float]]:
    """Summary of each rival's measurements."""
    lines = {}
    for name, rival in found.items():
        beside = found[rival.beside].rates
        ratios = [mine / other for mine, other in zip(rival.rates, beside, strict=True)]
        cuts = statistics.quantiles(rival.latencies_ms, n=20)
        lines[name] = {
            "per_second": round(statistics.median(rival.rates), 1),
            "best_per_second": round(max(rival.rates), 1),
            "ratio": round(statistics.median(ratios), 3),
            "p50_ms": round(cuts[9], 1),
            "p95_ms": round(cuts[18], 1),
        }
    return lines


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = []
        for name in arguments.backends:
            made = make_sandbox(name, Limits(wall_s=30.0), python=arguments.python)
            sandboxes.append(await stack.enter_async_context(made))
        found = rivals(sandboxes, arguments.python or sys.executable, arguments.concurrency)
        for rival in found.values():
            await rate(rival.act, rival.concurrency, 0.1)
        for _ in range(arguments.rounds):
            for rival in found.values():
                latencies = rival.latencies_ms
                rival.rates.append(
                    await rate(rival.act, rival.concurrency, arguments.seconds, latencies)
                )
        return {
            "concurrency": arguments.concurrency,
            "rounds": arguments.rounds,
            "isolation": {sandbox.backend: sandbox.isolation for sandbox in sandboxes},
            "workers": sandboxes[0].workers,
            "rivals": report(found),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["auto"])
    parser.add_argument("--python", default=None, help="of all rivals; landlock as root needs one")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=10)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
