"""Supervised training on conversations: cross-entropy of the assistant's tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from transformers import PreTrainedModel

from agents.segment import Segment
from agents.torch_thread import TorchThread
from rl.credit.algorithms import ALGORITHMS
from rl.errors import UsageError
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.task_order import TaskOrder

Update = Callable[[Sequence[Segment]], Awaitable[Mapping[str, float]]]
OnStep = Callable[[int, float], bool]


def supervised(
    model: PreTrainedModel,
    optimizer: OptimizerConfig,
    *,
    micro_batch_tokens: int = 4096,
    packing: bool = True,
) -> Updater:
    """A learner for supervised training, which trains ``model`` in place.

    Args:
        model: a causal language model.
        optimizer: settings of the optimizer.
        micro_batch_tokens: maximum tokens of one forward pass. Results do not depend on it.
        packing: whether rows are packed instead of padded. Results do not depend on it.

    Raises:
        ValueError: the learner cannot score this kind of model.
    """
    return Updater(
        *(model, ALGORITHMS["grpo"], optimizer),
        max_tokens_per_micro_batch=micro_batch_tokens,
        packing=packing,
    )


async def imitate(
    learner: Updater,
    segments: Sequence[Segment],
    *,
    steps: int,
    batch_size: int,
    seed: int,
    on_step: OnStep | None = None,
    thread: TorchThread | None = None,
) -> list[float]:
    """Train the model of ``learner`` in place, as :func:`make_steps` does.

    If the call is cancelled, the step in progress completes.

    Args:
        learner: makes the steps; :func:`supervised`.
        segments: conversations as tokens.
        steps: optimizer steps.
        batch_size: conversations per step.
        seed: seed of their order.
        on_step: as of :func:`make_steps`.
        thread: the thread that computes the steps, or None for a new one that uses one core.
    """
    async with AsyncExitStack() as stack:
        if thread is None:
            thread = TorchThread()
            stack.push_async_callback(thread.close)
        return await make_steps(
            partial(thread.do, learner.supervised_update),
            segments,
            window=learner.model.context_window,
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            on_step=on_step,
        )


async def make_steps(
    update: Update,
    segments: Sequence[Segment],
    *,
    window: int,
    steps: int,
    batch_size: int,
    seed: int,
    on_step: OnStep | None = None,
) -> list[float]:
    """Train a model on the tokens of ``segments`` with loss_mask 1.

    Args:
        update: makes one optimizer step, and returns its metrics.
        segments: conversations as tokens.
        window: the model's context window, in tokens.
        steps: optimizer steps.
        batch_size: conversations per step. A pass uses each conversation once, in a new order.
        seed: seed of the order.
        on_step: called with (step, loss) after each step; returns whether to continue.

    Returns:
        The loss of each step, in nats per token.

    Raises:
        NonFiniteLoss: the loss is not finite; the weights are those of the last good step.
        UsageError: a conversation is longer than the window.
        ValueError: ``segments`` is empty.
    """
    if not segments:
        raise ValueError("there is no conversation to imitate")
    check_lengths(window, segments)
    order = TaskOrder(len(segments), seed)
    losses: list[float] = []
    for step in range(1, steps + 1):
        chosen = order.take((step - 1) * batch_size, batch_size)
        metrics = await update([segments[i] for i in chosen])
        losses.append(metrics["loss"])
        if on_step is not None and not on_step(step, losses[-1]):
            break
    return losses


def check_lengths(
    window: int, segments: Sequence[Segment], names: Sequence[str] | None = None
) -> None:
    """Check that no segment is longer than the model's context window.

    Args:
        window: the model's context window, in tokens.
        segments: the conversations.
        names: what a message calls each of them; None for their numbers.

    Raises:
        UsageError: a segment is too long. The message names the first.
    """
    for number, segment in enumerate(segments):
        if len(segment) > window:
            name = names[number] if names else f"conversation {number + 1} of {len(segments)}"
            raise UsageError(
                f"{name} has {len(segment)} tokens, more than "
                f"the model's window of {window}: shorten it, or take a model with a larger window "
                f"(of model=tiny, tiny.context_length)"
            )
