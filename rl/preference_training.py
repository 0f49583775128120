"""What training on a file of preferences is, whoever learns: the data, the steps, the accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from agents.renderer import Renderer
from rl.comparisons import TokenComparison, read_comparisons, split_by_prompt
from rl.errors import UsageError
from rl.imitation import check_lengths
from rl.learner.model import load_model
from rl.learner.preferences import PreferenceLearner
from rl.preference_config import PreferenceConfig
from rl.rollout.order import TaskOrder
from rl.run.metrics import PassRate, pass_rate
from rl.stage import device_of, dtype_of, load_tokenizer

TOLD_EVERY = 50
"""Steps between two lines of progress."""


@dataclass(frozen=True)
class Material:
    """A model, and preferences in its tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer
    learned: list[TokenComparison]
    held_out: list[TokenComparison]


def open_material(config: PreferenceConfig, say: Callable[[str], None]) -> Material:
    """Load the model and the preferences.

    Raises:
        UsageError: the model or the data is not what the settings say.
    """
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(config.threads)
    if config.model == "tiny":
        raise UsageError(
            "model (tiny) is made for an environment: train it first (python -m rl.sft env=...) "
            "and give its folder, model=runs/.../checkpoints/last"
        )
    try:
        texts = read_comparisons(config.data)
        parts = split_by_prompt(texts, config.held_out, config.seed)
        model = load_model(config.model, device=device_of(config), dtype=dtype_of(config))
        tokenizer = load_tokenizer(config.model)
        renderer = Renderer(tokenizer)
    except ValueError as error:
        raise UsageError(str(error)) from error
    learned, held_out = ([text.tokenized(renderer) for text in part] for part in parts)
    check_lengths(model, [s for c in (*learned, *held_out) for s in c.segments])
    say(f"{len(learned)} comparisons to learn from, {len(held_out)} held out")
    return Material(model, tokenizer, renderer, learned, held_out)


def learn(
    learner: PreferenceLearner,
    comparisons: Sequence[TokenComparison],
    config: PreferenceConfig,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The optimizer steps that ``config`` asks for; each comparison is seen once per pass.

    Returns:
        ``steps``, ``seconds``, ``first_loss`` and ``last_loss``.

    Raises:
        RunFailure: a step would have spoilt the weights, or did.
    """
    order = TaskOrder(len(comparisons), config.seed)
    steps = config.steps or -(-len(comparisons) // config.batch_size)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(1, steps + 1):
        chosen = order.take((step - 1) * config.batch_size, config.batch_size)
        told = learner.update([comparisons[i] for i in chosen])
        losses.append(told["loss"])
        if step % TOLD_EVERY == 0:
            say(f"step {step}/{steps}  loss {told['loss']:.4f}  accuracy {told['accuracy']:.3f}")
        if 0 < config.max_seconds <= time.monotonic() - started:
            break
    return {
        "steps": len(losses),
        "seconds": time.monotonic() - started,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def accuracy(learner: PreferenceLearner, held_out: Sequence[TokenComparison]) -> PassRate:
    """How often the learner prefers what was preferred, with the 95% interval of pairs.

    Raises:
        UsageError: every held-out pair is a toss-up.
    """
    agreements = learner.agreements(held_out)
    if not agreements:
        raise UsageError("every held-out pair is labelled 0.5: hold out more (held_out=...)")
    return pass_rate(agreements)
