"""Training on a file of preferences or labels: loads data, makes steps, measures accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from agents.renderer import Renderer
from agents.segment import Segment
from rl.data.comparisons import TokenComparison, read_comparisons
from rl.data.split import Prompted, split_by_prompt
from rl.errors import UsageError
from rl.learner.model import load_model
from rl.preferences.config import PreferenceConfig
from rl.rollout.task_order import TaskOrder
from rl.run.metrics.intervals import PassRate, pass_rate
from rl.run.process.cores import report_busy
from rl.run.screen import Screen
from rl.run.training_log import TrainingLog
from rl.runtime.imitation import check_lengths
from rl.runtime.model import device_of, dtype_of, load_tokenizer

STEPS_PER_LINE = 50
"""Number of steps between two lines of progress."""


class Tokenized(Protocol):
    """A row of data as tokens."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The token sequences of the row."""
        ...


T = TypeVar("T", bound=Tokenized)
T_co = TypeVar("T_co", bound=Tokenized, covariant=True)
T_contra = TypeVar("T_contra", bound=Tokenized, contravariant=True)


class Row(Prompted, Protocol[T_co]):
    """A row of data as text."""

    def tokenized(self, renderer: Renderer) -> T_co:
        """The row as tokens of ``renderer``."""
        ...


class Trainable(Protocol[T_contra]):
    """A model that learns from rows and predicts their labels."""

    def update(self, rows: Sequence[T_contra], /) -> dict[str, float]:
        """Make one optimizer step; the returned metrics include ``loss`` and ``accuracy``."""
        ...

    def agreements(self, rows: Sequence[T_contra], /) -> list[float]:
        """Agreement of the model with each label, from 0 to 1."""
        ...


@dataclass(frozen=True)
class Material(Generic[T]):
    """A model, and rows of data converted to tokens of the model's tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer
    learned: list[T]
    held_out: list[T]


def open_material(
    config: PreferenceConfig, read: Callable[[str], Sequence[Row[T]]], report: Callable[[str], None]
) -> Material[T]:
    """Load the model and the data.

    Args:
        config: the settings, which name the model and the data.
        read: reads the rows of a file.
        report: called with lines for the user.

    Raises:
        UsageError: the model or the data cannot be used with the settings.
    """
    transformers_logging.disable_progress_bar()
    report_busy(config.num_threads, report)
    torch.set_num_threads(config.num_threads)
    try:
        texts = read(config.data)
        parts = split_by_prompt(texts, config.held_out, config.seed)
        model = load_model(config.model, device=device_of(config), dtype=dtype_of(config))
        tokenizer = load_tokenizer(config.model, config.chat)
        renderer = Renderer(tokenizer)
    except ValueError as error:
        raise UsageError(str(error)) from error
    learned, held_out = ([text.tokenized(renderer) for text in part] for part in parts)
    window: int = model.config.max_position_embeddings
    check_lengths(window, [s for c in (*learned, *held_out) for s in c.segments])
    report(f"{len(learned)} rows to learn from, {len(held_out)} held out")
    return Material(model, tokenizer, renderer, learned, held_out)


def open_comparisons(
    config: PreferenceConfig, report: Callable[[str], None]
) -> Material[TokenComparison]:
    """Load the model and a file of preferences.

    Raises:
        UsageError: the model or the data cannot be used with the settings, or every held-out pair
            has the label 0.5, so that accuracy could not be measured.
    """
    material = open_material(config, read_comparisons, report)
    if all(pair.label == 0.5 for row in material.held_out for pair in row.pairs):
        raise UsageError("every held-out pair is labelled 0.5: hold out more (held_out=...)")
    return material


def learn(
    learner: Trainable[T],
    rows: Sequence[T],
    config: PreferenceConfig,
    screen: Screen,
    log: TrainingLog,
) -> dict[str, Any]:
    """Make ``config.steps`` optimizer steps, or one pass over the rows if ``config.steps`` is 0.

    Each pass uses each row once. Training ends early after ``config.max_seconds``.

    Returns:
        ``steps``, ``seconds``, ``first_loss`` and ``last_loss``.

    Raises:
        RunFailure: the loss, the gradient or the weights of a step are not finite.
    """
    order = TaskOrder(len(rows), config.seed)
    steps = config.steps or -(-len(rows) // config.batch_size)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(1, steps + 1):
        chosen = order.take((step - 1) * config.batch_size, config.batch_size)
        metrics = learner.update([rows[i] for i in chosen])
        losses.append(metrics["loss"])
        log.step({"step": step, **metrics})
        screen.count("optimizer steps", step, steps)
        if step % STEPS_PER_LINE == 0:
            screen.report(
                f"step {step}/{steps}  loss {metrics['loss']:.4f}  "
                f"accuracy {metrics['accuracy']:.3f}"
            )
        if 0 < config.max_seconds <= time.monotonic() - started:
            break
    log.draw(f"learning from {config.data}")
    return {
        "steps": len(losses),
        "seconds": time.monotonic() - started,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def accuracy(learner: Trainable[T], held_out: Sequence[T]) -> PassRate:
    """Share of held-out labels that the learner agrees with, and its 95% interval."""
    return pass_rate(learner.agreements(held_out))
