"""``python -m rl.dpo model=FOLDER data=preferences.jsonl``: direct preference optimization."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl.files import claimed_folder
from rl.run.process.command import answer, run_command
from rl.run.screen import Screen
from rl.settings.finetuning import DPOConfig
from rl.settings.run import run_path

if TYPE_CHECKING:
    from rl.tracking.callback import Callback


def train_dpo(config: DPOConfig, callbacks: Sequence[Callback] = ()) -> dict[str, object]:
    """Train and save the model.

    Args:
        config: the settings.
        callbacks: callbacks in addition to those that ``config`` names.

    Returns:
        The first and last loss, the accuracy of the implicit reward on held-out pairs with its 95%
        interval, and the model's folder.

    Raises:
        UsageError: the data or the model is unusable.
        RunFailure: a step would have spoilt the weights, or a rank of the learner was lost; nothing
            is saved.
    """
    folder = run_path(config.out, config)
    with claimed_folder(folder, ("checkpoints/last",)), Screen() as screen:
        screen.report(f"DPO of {config.model} on {config.data}: {folder}")
        return _train(config, folder, screen, callbacks)


def _train(
    config: DPOConfig, folder: Path, screen: Screen, callbacks: Sequence[Callback]
) -> dict[str, object]:
    from rl.preferences.training import accuracy, learn, open_comparisons
    from rl.preferences.updater import anchored
    from rl.run.training_log import TrainingLog

    log = TrainingLog("dpo", folder, config, screen.report, callbacks)
    with open_comparisons(config, screen.report) as material, log:
        learner = material.learner
        # The reference is the untrained model: only its log-probabilities are kept.
        learned, held_out = (
            anchored(part, learner.rewards([s for row in part for s in row.segments]))
            for part in (material.learned, material.held_out)
        )
        losses = learn(learner, learned, config, screen, log)
        rate = accuracy(learner, held_out)
        screen.report(f"held-out pairs: accuracy {rate}")
        saved = folder / "checkpoints" / "last"
        learner.save(saved)
        result: dict[str, object] = {
            "model": str(saved),
            **losses,
            "accuracy": rate.rate,
            "accuracy_low": rate.low,
            "accuracy_high": rate.high,
            "held_out_pairs": rate.count,
        }
        log.finish(result)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.dpo", DPOConfig, {}, _run, argv)


def _run(config: DPOConfig) -> int:
    return answer(train_dpo(config))


if __name__ == "__main__":
    sys.exit(main())
