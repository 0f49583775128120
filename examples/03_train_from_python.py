"""The command line's run from Python: change the configuration, train, read the outcome.

Run with: python examples/03_train_from_python.py
"""

from __future__ import annotations

import asyncio
import tempfile

from rl.cli import parse
from rl.config import PRESETS, TrainConfig
from rl.train import train


def main() -> None:
    words = ["env=code-sandbox", "algo=ppo", "preset=smoke", f"out={tempfile.mkdtemp()}/run"]
    config = parse(TrainConfig, words, command="python -m rl.train", presets=PRESETS)
    outcome = asyncio.run(train(config))
    print(f"{outcome.step} steps in {outcome.folder}")
    print(f"before: {outcome.before}")
    print(f"after:  {outcome.after}")


if __name__ == "__main__":
    main()
