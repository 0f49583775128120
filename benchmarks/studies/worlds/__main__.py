"""``python -m benchmarks.studies.worlds rl.train env=talk ...``: a command with these worlds."""

from __future__ import annotations

import sys

import rl.eval
import rl.pipeline
import rl.sft
import rl.train
from benchmarks.studies.worlds import register_worlds

COMMANDS = {
    "rl.train": rl.train.main,
    "rl.sft": rl.sft.main,
    "rl.eval": rl.eval.main,
    "rl.pipeline": rl.pipeline.main,
}


def main() -> int:
    """Run the command line and return the exit code."""
    if sys.argv[1:2] == [] or sys.argv[1] not in COMMANDS:
        sys.stderr.write(f"error: the first word must be one of {', '.join(COMMANDS)}\n")
        return 1
    register_worlds()
    return COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
