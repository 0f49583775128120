"""Imitate demonstrations first, then learn from rewards: SFT, then GRPO from its checkpoint.

Run with: python examples/09_sft_then_rl.py (six minutes; with the word ``quick`` seconds)

Both folders hold a curve.png: the loss of SFT, and the reward of GRPO.

Prints:
    SFT: loss ... at its first step, ... at its last
    GRPO: success before ..., after ...
"""

from __future__ import annotations

import sys
import tempfile

import rl

QUICK = "quick" in sys.argv
SHORT = rl.PRESETS["smoke"] if QUICK else {}
SUPERVISED = {"steps": 20, "demonstrations": 100} if QUICK else {}


def main() -> None:
    folder = tempfile.mkdtemp()
    sft = rl.fit_sft(
        rl.SFTConfig(
            env="knights-knaves",
            tiny={"steps": 20, "demonstrations": 400},
            test_tasks=0,
            out=f"{folder}/sft",
            **SUPERVISED,
        )
    )
    losses = [record["loss"] for record in sft.history if "loss" in record]
    print(f"SFT: loss {losses[0]:.2f} at its first step, {losses[-1]:.2f} at its last")
    run = rl.fit(
        rl.TrainConfig(env="knights-knaves", model=str(sft.made), out=f"{folder}/rl", **SHORT)
    )
    print(f"GRPO: success before {run.before}, after {run.after}")


if __name__ == "__main__":
    main()
