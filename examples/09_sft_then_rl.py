"""Imitate demonstrations first, then learn from rewards: SFT, then GRPO from its checkpoint.

Run with: python examples/09_sft_then_rl.py (minutes; with the word ``quick`` seconds)

Both folders hold a curve.png: the loss of SFT, and the reward of GRPO. GRPO gets its learning rate
here, because the default for a model by path, 1e-6, suits models of billions of parameters.

Prints:
    SFT: loss ... at its first step, ... at its last
    GRPO: success before ..., after ...
"""

from __future__ import annotations

import sys
import tempfile

import rl

ENV = {"name": "search-qa", "hops": "2"}
QUICK = "quick" in sys.argv
IMITATE = {"steps": 20, "demonstrations": 100} if QUICK else {"steps": 600, "demonstrations": 6000}
LEARN = rl.PRESETS["smoke"] if QUICK else {"steps": 40}


def main() -> None:
    folder = tempfile.mkdtemp()
    sft = rl.fit_sft(
        rl.SFTConfig(
            env=ENV,
            tiny={"steps": 20, "demonstrations": 400},  # Almost nothing: SFT does the work.
            optimizer={"lr": 3e-3},
            test_tasks=0,
            out=f"{folder}/sft",
            **IMITATE,
        )
    )
    losses = [record["loss"] for record in sft.history if "loss" in record]
    print(f"SFT: loss {losses[0]:.2f} at its first step, {losses[-1]:.2f} at its last")
    run = rl.fit(
        rl.TrainConfig(
            env=ENV, model=str(sft.made), optimizer={"lr": 4e-4}, out=f"{folder}/rl", **LEARN
        )
    )
    print(f"GRPO: success before {run.before}, after {run.after}")


if __name__ == "__main__":
    main()
