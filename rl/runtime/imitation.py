"""Supervised training on conversations: cross-entropy of the assistant's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from transformers import PreTrainedModel

from agents.segment import Segment
from agents.torch_thread import TorchThread
from rl.credit.algorithms import ALGORITHMS
from rl.errors import UsageError
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.task_order import TaskOrder


def supervised(
    model: PreTrainedModel,
    optimizer: OptimizerConfig,
    memory: MemoryConfig = DEFAULT_MEMORY,
    *,
    micro_batch_tokens: int = 4096,
    packing: bool = True,
) -> Updater:
    """A learner for supervised training, which trains ``model`` in place.

    Args:
        model: a causal language model.
        optimizer: settings of the optimizer.
        memory: what is kept in memory. Results do not depend on it.
        micro_batch_tokens: maximum tokens of one forward pass. Results do not depend on it.
        packing: whether rows are packed instead of padded. Results do not depend on it.

    Raises:
        ValueError: the learner cannot score this kind of model.
    """
    return Updater(
        *(model, ALGORITHMS["grpo"], optimizer),
        max_tokens_per_micro_batch=micro_batch_tokens,
        packing=packing,
        memory=memory,
    )


async def imitate(
    learner: Updater,
    segments: Sequence[Segment],
    *,
    steps: int,
    batch_size: int,
    seed: int,
    on_step: Callable[[int, float], bool] | None = None,
    thread: TorchThread | None = None,
) -> list[float]:
    """Train the model of ``learner`` in place on the tokens of ``segments`` with loss_mask 1.

    If the call is cancelled, the step in progress completes.

    Args:
        learner: makes the steps; :func:`supervised`.
        segments: conversations as tokens.
        steps: optimizer steps.
        batch_size: conversations per step. A pass uses each conversation once, in a new order.
        seed: seed of the order.
        on_step: called with (step, loss) after each step; returns whether to continue.
        thread: the thread that computes the steps, or None for a new one that uses one core.

    Returns:
        The loss of each step, in nats per token.

    Raises:
        NonFiniteLoss: the loss is not finite; the weights are those of the last good step.
        UsageError: a conversation is longer than the model's context window.
        ValueError: ``segments`` is empty.
    """
    if not segments:
        raise ValueError("there is no conversation to imitate")
    check_lengths(learner.model.context_window, segments)
    order = TaskOrder(len(segments), seed)
    losses: list[float] = []
    async with AsyncExitStack() as stack:
        if thread is None:
            thread = TorchThread()
            stack.push_async_callback(thread.close)
        for step in range(1, steps + 1):
            chosen = order.take((step - 1) * batch_size, batch_size)
            part = [segments[i] for i in chosen]
            metrics = await thread.do(learner.supervised_update, part)
            losses.append(metrics["loss"])
            if on_step is not None and not on_step(step, losses[-1]):
                break
    return losses


def check_lengths(window: int, segments: Sequence[Segment]) -> None:
    """Check that no segment is longer than the model's context window.

    Raises:
        UsageError: a segment is too long. The message names the first.
    """
    for number, segment in enumerate(segments, start=1):
        if len(segment) > window:
            raise UsageError(
                f"conversation {number} of {len(segments)} has {len(segment)} tokens, more than "
                f"the model's window of {window}: shorten it, or take a model with a larger window "
                f"(of model=tiny, tiny.context_length)"
            )
