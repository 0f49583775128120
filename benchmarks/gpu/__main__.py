"""Compares one GPU with the CPU, then measures memory and speed; docs/gpu.md.

    python -m benchmarks.gpu [--parts NAME ...] [--out FILE] [--device cuda]
    python -m benchmarks.gpu --small --device cpu

Each part runs in a process of its own with a deadline, so a part that fails, hangs or ends out of
memory does not lose the others' figures. With ``--small`` one process runs all parts on tiny
shapes, to check that the code still runs. Prints a table, and writes FILE after each part. Exit
code 1 means that a part or a figure failed, or a goal was missed; with ``--small`` goals do not
count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.figures import Setup, table
from benchmarks.gpu.parts import PARTS, Results, measure, run_here

BUDGET_S = 470.0
"""Seconds for all parts together."""
OUT = Path(__file__).parents[1] / "results" / "gpu.json"


def sees_gpu() -> bool:
    """Whether torch finds a GPU. A pass over a CPU does not wait for this import."""
    import torch

    return torch.cuda.is_available()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--parts",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        metavar="NAME",
        help=f"parts to run, of {', '.join(PARTS)}",
    )
    add("--out", type=Path, default=OUT, help="file of the results")
    add("--device", default="cuda", help="the device to measure")
    add("--small", action="store_true", help="tiny shapes, in one process")
    add("--budget", type=float, default=BUDGET_S, help="seconds for all parts together")
    add(
        "--allow-unsafe",
        action="store_true",
        help="let the part job run sampled programs without isolation if no sandbox works",
    )
    add("--here", type=Path, help=argparse.SUPPRESS)
    add("--work", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.device == "cuda":
        words.device = "cuda:0"  # Some functions of torch need the index.
    if words.here is not None:
        setup = Setup(words.device, words.small, words.work, words.allow_unsafe)
        run_here(words.parts, setup, words.here)
        return 0
    if words.device != "cpu" and not sees_gpu():
        parser.error(
            f"--device ({words.device}) needs a GPU that torch sees: give --small --device cpu"
        )
    with tempfile.TemporaryDirectory(prefix="turnwise-gpu-") as work:
        setup = Setup(words.device, words.small, Path(work), words.allow_unsafe)
        results = Results(setup, words.out)
        measure(words.parts, setup, results, words.budget)
    print(table(results.figures()))
    for name, part in results.parts.items():
        for message in part.warnings:
            print(f"warning in {name}: {message}")
    print(f"\n{results.summary()}\nresults: {words.out}")
    return 0 if results.is_good(with_goals=not words.small) else 1


if __name__ == "__main__":
    sys.exit(main())
