"""Activation checkpointing: the backward pass computes each layer's activations again.

Between the forward and the backward pass, a layer keeps only its input. Transformers' own switch,
``gradient_checkpointing_enable``, does nothing in evaluation mode, in which the learner trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import GradientCheckpointingLayer

from agents.local.forward.routers import selection_in_use, using
from rl.learner.settings import Checkpointing, MemoryConfig


def decoder_layers(trunk: nn.Module) -> list[nn.Module]:
    """The layers of ``trunk`` that transformers marks as layers to checkpoint.

    Raises:
        ValueError: no layer is marked.
    """
    found = list(_outermost(trunk))
    if not found:
        raise ValueError(
            f"memory.activation_checkpointing needs a model whose layers transformers can "
            f"checkpoint, unlike {type(trunk).__name__}: give memory.activation_checkpointing=off"
        )
    return found


def check_layers(trunk: nn.Module, memory: MemoryConfig) -> None:
    """Check that the model has layers to checkpoint, unless ``memory`` turns checkpointing off.

    Raises:
        ValueError: the model has no layer to checkpoint.
    """
    if _mode(trunk, memory) != "off":
        decoder_layers(trunk)


def _mode(trunk: nn.Module, memory: MemoryConfig) -> Checkpointing:
    return memory.checkpointing_on(next(trunk.parameters()).device.type)


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, GradientCheckpointingLayer):
            yield child
        else:
            yield from _outermost(child)


@contextmanager
def checkpointed_layers(trunk: nn.Module, memory: MemoryConfig) -> Iterator[None]:
    """Let the layers of ``trunk`` keep only their inputs in a forward pass inside this context.

    The layers change only while the context lasts, so copies of the model and forward passes
    elsewhere are not affected. The context does nothing without gradients, or if ``memory`` turns
    checkpointing off.

    Raises:
        ValueError: the model has no layer to checkpoint.
    """
    mode = _mode(trunk, memory)
    with ExitStack() as stack:
        if mode != "off" and torch.is_grad_enabled():
            for layer in decoder_layers(trunk):
                stack.callback(_replace_forward(layer, mode == "offload"))
        yield


def _replace_forward(layer: nn.Module, offload: bool) -> Callable[[], None]:
    """Make ``layer`` compute its forward pass under a checkpoint.

    Returns a function that restores the layer's own forward pass.
    """
    own = vars(layer).get("forward")
    layer.forward = partial(_run, layer.forward, offload)

    def undo() -> None:
        if own is None:
            del layer.forward
        else:
            layer.forward = own

    return undo


def _run(forward: Callable[..., Any], offload: bool, hidden: Tensor, *args: Any, **kw: Any) -> Any:
    """A layer's forward pass under a checkpoint, which keeps only ``hidden``, the layer's input."""
    selection = selection_in_use()

    def call(hidden: Tensor) -> Any:
        # The backward pass, which has no selection of its own, must compute with the same experts.
        with using(selection):
            return forward(hidden, *args, **kw)

    # Nothing is random in evaluation mode, so the generators' states need no copy.
    run = partial(checkpoint, call, hidden, use_reentrant=False, preserve_rng_state=False)
    if not offload:
        return run()
    # The hooks see the checkpoint's input only: the checkpoint has hooks of its own inside.
    with save_on_cpu(pin_memory=hidden.is_cuda):
        return run()
