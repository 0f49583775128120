"""Training on a file of preferences or labels: loads data, makes steps, measures accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers.utils import logging as transformers_logging

from agents.renderer import Renderer
from agents.segment import Segment
from rl.data.comparisons import TokenComparison, read_comparisons
from rl.data.split import Prompted, split_by_prompt
from rl.errors import UsageError
from rl.learner.model import check_model
from rl.preferences.learner import PreferenceLearner, PreferenceSpec, open_preferences
from rl.rollout.task_order import TaskOrder
from rl.run.metrics.intervals import PassRate, pass_rate
from rl.run.process.cores import report_busy
from rl.run.screen import Screen
from rl.run.training_log import TrainingLog
from rl.runtime.imitation import check_lengths
from rl.runtime.model import device_of, dtype_of, load_tokenizer
from rl.settings.finetuning import DPOConfig, PreferenceConfig, RewardModelConfig

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


class Row(Prompted, Protocol[T_co]):
    """A row of data as text."""

    def tokenized(self, renderer: Renderer) -> T_co:
        """The row as tokens of ``renderer``."""
        ...


@dataclass(frozen=True)
class Material(Generic[T]):
    """An opened learner, and rows of data converted to tokens of its tokenizer."""

    learner: PreferenceLearner[T]
    renderer: Renderer
    learned: list[T]
    held_out: list[T]


@contextmanager
def open_material(
    config: DPOConfig | RewardModelConfig,
    read: Callable[[str], Sequence[Row[T]]],
    report: Callable[[str], None],
) -> Iterator[Material[T]]:
    """Load the data and the model, which is closed at the end of the context.

    Args:
        config: the settings, which name the model and the data.
        read: reads the rows of a file.
        report: called with lines for the user.

    Raises:
        UsageError: the model or the data cannot be used with the settings.
        LearnerLost: a rank of the learner ended while it started.
    """
    transformers_logging.disable_progress_bar()
    report_busy(config.num_threads, report)
    torch.set_num_threads(config.num_threads)
    with ExitStack() as stack:
        try:
            texts = read(config.data)
            parts = split_by_prompt(texts, config.held_out, config.seed)
            check_model(config.model)
            tokenizer = load_tokenizer(config.model, config.chat)
            renderer = Renderer(tokenizer)
            dtype = str(dtype_of(config)).removeprefix("torch.")
            spec = PreferenceSpec(config, tokenizer, str(device_of(config)), dtype)
            learner: PreferenceLearner[T] = stack.enter_context(open_preferences(spec))
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            learned, held_out = ([text.tokenized(renderer) for text in part] for part in parts)
        except ValueError as error:
            raise UsageError(f"data ({config.data}): {error}") from error
        rows = {id(text): f"row {n} of {len(texts)}" for n, text in enumerate(texts, start=1)}
        for text, tokens in zip(chain(*parts), (*learned, *held_out), strict=True):
            names = [rows[id(text)]] * len(tokens.segments)
            check_lengths(learner.context_window, tokens.segments, names)
        report(f"{len(learned)} rows to learn from, {len(held_out)} held out")
        yield Material(learner, renderer, learned, held_out)


@contextmanager
def open_comparisons(
    config: DPOConfig | RewardModelConfig, report: Callable[[str], None]
) -> Iterator[Material[TokenComparison]]:
    """Load the model and a file of preferences; see :func:`open_material`.

    Raises:
        UsageError: the model or the data cannot be used with the settings, or every held-out pair
            has the label 0.5, so that accuracy could not be measured.
    """
    with open_material(config, read_comparisons, report) as material:
        if all(pair.label == 0.5 for row in material.held_out for pair in row.pairs):
            raise UsageError("every held-out pair is labelled 0.5: hold out more (held_out=...)")
        yield material


def learn(
    learner: PreferenceLearner[T],
    rows: Sequence[T],
    config: PreferenceConfig,
    screen: Screen,
    log: TrainingLog,
) -> dict[str, Any]:
    """Make ``config.steps`` optimizer steps, or one pass over the rows if ``config.steps`` is 0.

    Each pass uses each row once, so a batch has at most all rows, and the last batch of one pass
    the rows that are left. Training ends early after ``config.max_seconds``.

    Returns:
        ``steps``, ``seconds``, ``first_loss`` and ``last_loss``.

    Raises:
        RunFailure: the loss, the gradient or the weights of a step are not finite.
    """
    order = TaskOrder(len(rows), config.seed)
    size = min(config.batch_size, len(rows))
    steps = config.steps or -(-len(rows) // size)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(1, steps + 1):
        first = (step - 1) * size
        chosen = order.take(first, size if config.steps else min(size, len(rows) - first))
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


def accuracy(learner: PreferenceLearner[T], held_out: Sequence[T]) -> PassRate:
    """Share of held-out labels that the learner agrees with, and its 95% interval."""
    return pass_rate(learner.agreements(held_out))
