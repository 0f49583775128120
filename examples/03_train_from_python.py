"""The command line's run from Python: settings as objects, train, read what came out.

Run with: python examples/03_train_from_python.py
"""

from __future__ import annotations

import tempfile

import rl


def main() -> None:
    out = f"{tempfile.mkdtemp()}/run"
    config = rl.TrainConfig(env="code-sandbox", algo="ppo", out=out, **rl.PRESETS["smoke"])
    run = rl.fit(config)
    print(f"{run.steps} steps in {run.folder}")
    print(f"before: {run.before}")
    print(f"after:  {run.after}")


if __name__ == "__main__":
    main()
