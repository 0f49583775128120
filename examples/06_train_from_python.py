"""The command line's run from Python: settings as objects, train, read what came out.

Run with: python examples/06_train_from_python.py (five minutes; with the word ``quick`` seconds)

The run's folder holds curve.png; docs/examples.md shows one.

Prints:
    ... steps in ...
    before: ...
    after:  ...
    best weights: ...checkpoints/best
"""

from __future__ import annotations

import sys
import tempfile

import rl

QUICK = rl.PRESETS["smoke"] if "quick" in sys.argv else {}


def main() -> None:
    out = f"{tempfile.mkdtemp()}/run"
    run = rl.fit(rl.TrainConfig(env="code-sandbox", algo="ppo", out=out, **QUICK))
    print(f"{run.steps} steps in {run.folder}")
    print(f"before: {run.before}")
    print(f"after:  {run.after}")
    print(f"best weights: {run.best}")


if __name__ == "__main__":
    main()
