"""Comparisons of mathematical answers per second.

    python -m benchmarks.environments.math_verify

There are three kinds of pairs: integers; LaTeX where every pair is new; LaTeX in groups of eight
answers to one question, where three of four repeat another answer, as in training. The verifier and
math-verify (called directly in one process, without time limit and cache) alternate; on a busy
machine the ratio is more reliable than the rates. Rates are per second of wall time and per second
of CPU time of all processes. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envs.math.verification.verifier import MathVerifier, Outcome

Pair = tuple[str, str]
THREADS = 8
ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


def integers(rng: random.Random) -> list[Pair]:
    golds = [rng.randint(-9999, 9999) for _ in range(20_000)]
    return [(str(gold), str(gold + rng.choice((0, 1)))) for gold in golds]


def expression(rng: random.Random) -> str:
    a, b, c = (rng.randint(2, 99) for _ in range(3))
    kinds = [
        rf"\frac{{{a}}}{{{b}}}",
        rf"{a}\sqrt{{{b}}}",
        rf"\frac{{{a}\pi}}{{{b}}}",
        rf"{a}+{b}\sqrt{{{c}}}",
        rf"x^2+{a}x-{b}",
    ]
    return rng.choice(kinds)


def latex(rng: random.Random) -> list[Pair]:
    """Half of them right; half of the right ones in other spacing."""
    pairs = []
    for _ in range(400):
        gold = expression(rng)
        right = rng.choice((gold, gold.replace("+", " + ").replace("-", " - ") + " "))
        pairs.append((gold, rng.choice((right, expression(rng)))))
    return pairs


def groups(rng: random.Random) -> list[Pair]:
    """Eight answers to each of a hundred questions; two different ones among them, one right."""
    pairs = []
    for _ in range(100):
        gold, wrong = expression(rng), expression(rng)
        pairs += [(gold, rng.choice((gold, wrong))) for _ in range(8)]
    return pairs


def processor_seconds(verifier: MathVerifier) -> float:
    """Processor seconds of this process and of the verifier's processes."""
    total = time.process_time()
    for worker in verifier._all:
        fields = Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def directly(pairs: list[Pair]) -> int:
    """Compare pairs as the verifier's processes do, but without their cache."""
    from envs.math.verification import worker

    right = 0
    for gold, answer in pairs:
        worker._parse.cache_clear()
        parsed = (worker._parse(gold), worker._parse(answer))
        right += worker.math_verify.verify(*parsed, timeout_seconds=None)
    return right


def by_verifier(verifier: MathVerifier, pairs: list[Pair]) -> int:
    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(lambda pair: verifier.check(*pair), pairs))
    return outcomes.count(Outcome.RIGHT)


def best(run: Callable[[list[Pair]], int], rounds: list[list[Pair]], cpu: Callable[[], float]):
    """The best rates over rounds of fresh pairs."""
    wall_rate = cpu_rate = 0.0
    for pairs in rounds:
        wall, used = time.perf_counter(), cpu()
        run(pairs)
        wall_rate = max(wall_rate, len(pairs) / (time.perf_counter() - wall))
        cpu_rate = max(cpu_rate, len(pairs) / max(1 / TICKS, cpu() - used))
    return {"per_second": round(wall_rate), "per_cpu_second": round(cpu_rate)}


def main() -> None:
    rng, results = random.Random(0), {}
    verifier = MathVerifier()
    try:
        by_verifier(verifier, latex(rng))
        directly(latex(rng)[:50])
        for make in (integers, latex, groups):
            ours, theirs = {}, {}
            for _ in range(ROUNDS):
                pairs = make(rng)
                some = pairs[:400]
                assert by_verifier(verifier, some) == directly(some), "one and the same verdict"
                fresh = [make(rng)]
                measured = best(
                    lambda p: by_verifier(verifier, p), fresh, lambda: processor_seconds(verifier)
                )
                ours = {k: max(v, ours.get(k, 0)) for k, v in measured.items()}
                measured = best(directly, [fresh[0][:400]], time.process_time)
                theirs = {k: max(v, theirs.get(k, 0)) for k, v in measured.items()}
            results[make.__name__] = {"verifier": ours, "math_verify": theirs}
    finally:
        verifier.close()
    results["processes"] = min(4, len(os.sched_getaffinity(0)))
    print(json.dumps({"benchmark": "math_verify"} | results))


if __name__ == "__main__":
    main()
