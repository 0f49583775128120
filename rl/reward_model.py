"""``python -m rl.reward_model model=FOLDER data=preferences.jsonl``: trains a reward model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.files import claimed_folder
from rl.run.process.command import answer, run_command
from rl.run.screen import Screen
from rl.settings.finetuning import RewardModelConfig
from rl.settings.run import run_path

if TYPE_CHECKING:
    from agents.segment import Segment
    from rl.data.comparisons import TokenComparison
    from rl.data.conversations import Conversation
    from rl.preferences.learner import PreferenceLearner
    from rl.preferences.training import Material, T
    from rl.run.training_log import TrainingLog
    from rl.tracking.callback import Callback


def train_reward_model(
    config: RewardModelConfig, callbacks: Sequence[Callback] = ()
) -> dict[str, object]:
    """Train and save the reward model.

    Args:
        config: the settings.
        callbacks: callbacks in addition to those that ``config`` names.

    Returns:
        The first and last loss, the accuracy on held-out pairs or steps with its 95% interval, and
        the reward model's folder. For preferences, also the standard deviation of the rewards of
        the training answers.

    Raises:
        UsageError: the data or the model is unusable.
        RunFailure: a step would have spoilt the weights, or a rank of the learner was lost; nothing
            is saved.
    """
    from rl.run.training_log import TrainingLog

    folder = run_path(config.out, config)
    with claimed_folder(folder, ("checkpoints/last",)), Screen() as screen:
        screen.report(f"reward model of {config.model} on {config.data}: {folder}")
        log = TrainingLog("reward_model", folder, config, screen.report, callbacks)
        train = _of_steps if config.process else _of_answers
        return train(config, folder, screen, log)


def _of_answers(
    config: RewardModelConfig, folder: Path, screen: Screen, log: TrainingLog
) -> dict[str, object]:
    from statistics import pstdev

    from rl.preferences.training import accuracy, learn, open_comparisons

    conversations = _conversations(config)
    with open_comparisons(config, screen.report) as material, log:
        centred, learner = _centred_on(conversations, material), material.learner
        losses = learn(learner, material.learned, config, screen, log)
        rate = accuracy(learner, material.held_out)
        screen.report(f"held-out pairs: accuracy {rate}")
        bias = learner.center(centred)
        rewards = learner.rewards([s for c in material.learned for s in c.segments])
        result: dict[str, object] = {
            "model": _save(folder, learner),
            **losses,
            "accuracy": rate.rate,
            "accuracy_low": rate.low,
            "accuracy_high": rate.high,
            "held_out_pairs": rate.count,
            "reward_std": pstdev(rewards),
            "reward_bias": bias,
        }
        log.finish(result)
    return result


def _of_steps(
    config: RewardModelConfig, folder: Path, screen: Screen, log: TrainingLog
) -> dict[str, object]:
    from rl.data.steps import read_steps
    from rl.preferences.training import accuracy, learn, open_material

    with open_material(config, read_steps, screen.report) as material, log:
        learner = material.learner
        losses = learn(learner, material.learned, config, screen, log)
        rate = accuracy(learner, material.held_out)
        screen.report(f"held-out steps: accuracy {rate}")
        result: dict[str, object] = {
            "model": _save(folder, learner),
            **losses,
            "accuracy": rate.rate,
            "accuracy_low": rate.low,
            "accuracy_high": rate.high,
            "held_out_steps": rate.count,
        }
        log.finish(result)
    return result


def _save(folder: Path, learner: PreferenceLearner[T]) -> str:
    saved = folder / "checkpoints" / "last"
    learner.save(saved)
    return str(saved)


def _conversations(config: RewardModelConfig) -> list[Conversation]:
    """The conversations of ``center``, which are read before the model is loaded."""
    from rl.data.conversations import read_conversations

    try:
        return list(read_conversations(config.center, "center")) if config.center else []
    except ValueError as error:
        raise UsageError(str(error)) from error


def _centred_on(
    conversations: Sequence[Conversation], material: Material[TokenComparison]
) -> list[Segment]:
    """The answers that centre the rewards: the mean reward of these answers becomes 0."""
    from rl.runtime.imitation import check_lengths

    if not conversations:
        return [segment for c in material.learned for segment in c.segments]
    segments = [conversation.to_segment(material.renderer) for conversation in conversations]
    check_lengths(material.learner.context_window, segments)
    return segments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.reward_model", RewardModelConfig, {}, _run, argv)


def _run(config: RewardModelConfig) -> int:
    return answer(train_reward_model(config))


if __name__ == "__main__":
    sys.exit(main())
