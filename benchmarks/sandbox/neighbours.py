"""Slowdown of honest programs beside a fork bomb and a memory bomb.

    python -m benchmarks.sandbox.neighbours --backend bwrap --rounds 7

One honest program computes for about half a second; the other forks ten children and waits for
them. Each runs alone and beside the bombs, alternately; a bomb that ends is started again. Prints
one JSON line with medians. The exit code is 1 if a ratio exceeds 2 or an answer is wrong.
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

from tools.sandbox import Limits, Sandbox, make_sandbox

MAX_RATIO = 2.0
HONEST = {
    "computes": (
        "total = 0\nfor n in range({count}):\n    total += n * n % 7\nprint('done')",
        "done",
    ),
    "forks": (
        "import os\nfor _ in range(10):\n    if os.fork() == 0:\n"
        "        total = 0\n        for n in range({count} // 20): total += n * n % 7\n"
        "        os._exit(7)\n"
        "print(sum(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(10)))",
        "70",
    ),
}
BOMBS = (
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "kept = []\nwhile True:\n    kept.append(bytearray(b'x') * (4 << 20))",
)
_UNDER_WAY_S = 0.5
_CALIBRATION = 1_000_000


async def seconds(sandbox: Sandbox, name: str, count: int) -> float:
    """Seconds from the call of an honest program to its result."""
    text, expected = HONEST[name]
    started = time.monotonic()
    result = await sandbox.run(text.replace("{count}", str(count)))
    taken = time.monotonic() - started
    if result.stdout != f"{expected}\n":
        raise RuntimeError(f"{name} ended wrong: {result}")
    return taken


@contextlib.asynccontextmanager
async def bombs(sandbox: Sandbox) -> AsyncIterator[None]:
    """Each bomb explodes over and over in the meantime."""

    async def explode(text: str) -> None:
        while True:
            await sandbox.run(text, limits=Limits(wall_s=5.0))

    tasks = [asyncio.create_task(explode(text)) for text in BOMBS]
    await asyncio.sleep(_UNDER_WAY_S)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    limits = Limits(wall_s=120.0)
    async with make_sandbox(options.backend, limits, python=options.python, workers=8) as sandbox:
        unit = min([await seconds(sandbox, "computes", _CALIBRATION) for _ in range(3)])
        count = round(_CALIBRATION * 0.5 / unit)
        alone: dict[str, list[float]] = {name: [] for name in HONEST}
        beside: dict[str, list[float]] = {name: [] for name in HONEST}
        for _ in range(options.rounds):
            for name in HONEST:
                alone[name].append(await seconds(sandbox, name, count))
                async with bombs(sandbox):
                    beside[name].append(await seconds(sandbox, name, count))
        ratios = {
            name: [b / a for a, b in zip(alone[name], beside[name], strict=True)] for name in HONEST
        }
        medians = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
        return {
            "backend": sandbox.backend,
            "cores": len(os.sched_getaffinity(0)),
            "rounds": options.rounds,
            "alone_s": {n: round(statistics.median(v), 3) for n, v in alone.items()},
            "beside_s": {n: round(statistics.median(v), 3) for n, v in beside.items()},
            "ratio": medians,
            "ratios": {n: [round(one, 2) for one in sorted(v)] for n, v in ratios.items()},
            "sound": max(medians.values()) <= MAX_RATIO,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--python", default=None)
    parser.add_argument("--rounds", type=int, default=7)
    result = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(result))
    return 0 if result["sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
