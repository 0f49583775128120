"""``python -m rl.reward_model model=FOLDER data=preferences.jsonl``: learn what is preferred."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl.command import run_command
from rl.config import run_path
from rl.errors import UsageError
from rl.preference_config import RewardModelConfig

if TYPE_CHECKING:
    from agents.segment import Segment
    from rl.preference_training import Material


def train_reward_model(config: RewardModelConfig) -> dict[str, object]:
    """Train as ``config`` says and save the reward model.

    Returns:
        The losses at both ends, the accuracy on held-out pairs with its 95% interval, how rewards
        are spread over the answers that were learned from, and where the reward model is.

    Raises:
        UsageError: the data or the model is not what the settings say.
        RunFailure: a step would have spoilt the weights; nothing is saved.
    """
    from statistics import fmean, pstdev

    from rl.learner.checkpoint import save_checkpoint
    from rl.learner.preferences import PreferenceLearner
    from rl.learner.reward_model import RewardModel
    from rl.preference_training import accuracy, learn, open_material
    from rl.run.files import make_folder

    folder = run_path(config.out, config)
    make_folder(folder)
    material = open_material(config, _say)
    try:
        rewarder = RewardModel.from_causal(material.model)
    except ValueError as error:
        raise UsageError(str(error)) from error
    centred = _centred_on(config, material)
    learner = PreferenceLearner(rewarder, config.optimizer, config.micro_batch_tokens)
    told = learn(learner, material.learned, config, _say)
    rate = accuracy(learner, material.held_out)
    _say(f"held-out pairs: accuracy {rate}")
    rewarder.bias = -fmean(learner.rewards(centred))
    saved = folder / "checkpoints" / "last"
    save_checkpoint(saved, rewarder.model, material.tokenizer)
    return {
        "model": str(saved),
        **told,
        "accuracy": rate.rate,
        "accuracy_low": rate.low,
        "accuracy_high": rate.high,
        "held_out_pairs": rate.count,
        "reward_std": pstdev(learner.rewards([s for c in material.learned for s in c.segments])),
        "reward_bias": rewarder.bias,
    }


def _centred_on(config: RewardModelConfig, material: Material) -> list[Segment]:
    """The answers that get reward 0 on average."""
    from rl.demonstrations import read_conversations
    from rl.imitation import check_lengths

    if not config.center:
        return [segment for c in material.learned for segment in c.segments]
    try:
        conversations = read_conversations(config.center, "center")
    except ValueError as error:
        raise UsageError(str(error)) from error
    segments = [conversation.to_segment(material.renderer) for conversation in conversations]
    check_lengths(material.model, segments)
    return segments


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.reward_model", RewardModelConfig, {}, _run, argv)


def _run(config: RewardModelConfig) -> int:
    sys.stdout.write(json.dumps(train_reward_model(config)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
