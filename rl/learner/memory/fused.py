"""Norms and gated layers with their own backward pass, which keeps less and is faster.

Transformers computes both from small operations. Autograd keeps a result of each, and the backward
pass has one operation or more for each. On a CPU, the norms of a small model then take a quarter of
an update. Here, the forward pass computes the same bits and keeps only its inputs, from which the
backward pass computes the same formulas in fewer operations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

_FAMILIES = {"Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3"}
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def fuse(model: nn.Module) -> None:
    """Let the norms and gated layers of the Llama family use the backward passes of this module.

    Other modules stay as they are.
    """
    for module in model.modules():
        kind = _kind(type(module))
        if kind == "RMSNorm":
            module.forward = partial(_norm, module)
        elif kind == "MLP" and isinstance(module.act_fn, nn.SiLU | SiLUActivation):
            module.forward = partial(_gated, module)


def _kind(cls: type) -> str | None:
    """What a class of the Llama family is, such as ``RMSNorm``. None for every other class.

    Names are compared, because an import of each family's module would take time at each start.
    """
    for prefix, family in _FAMILIES.items():
        known = cls.__module__ == f"transformers.models.{family}.modeling_{family}"
        if known and cls.__name__.startswith(prefix):
            return cls.__name__.removeprefix(prefix)
    return None


def _norm(module: Any, hidden_states: Tensor) -> Tensor:
    """The forward pass of a norm of transformers."""
    weight: Tensor = module.weight
    if hidden_states.dtype not in _TYPES or weight.dtype != hidden_states.dtype:
        unfused: Tensor = type(module).forward(module, hidden_states)
        return unfused
    normed: Tensor = _RMSNorm.apply(  # type: ignore[no-untyped-call]
        hidden_states, weight, module.variance_epsilon
    )
    return normed


def _gated(module: Any, x: Tensor) -> Tensor:
    """The forward pass of a gated layer of transformers."""
    gated = _SwiGLU.apply(module.gate_proj(x), module.up_proj(x))  # type: ignore[no-untyped-call]
    down: Tensor = module.down_proj(gated)
    return down


class _RMSNorm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x ** 2) + epsilon)`` (Zhang & Sennrich 2019, equation 4).

    Computed in float32. As in transformers, the normed input is rounded before the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        exact = x.float()
        squares = exact.square()
        scale = squares.mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed = torch.mul(exact, scale, out=squares).to(x.dtype)
        return normed.mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        gradient, exact_weight = gradient.float(), weight.float()
        normed = x.float() * scale
        product = gradient * normed
        of_weight = product.flatten(0, -2).sum(0).to(x.dtype) if ctx.needs_input_grad[1] else None
        mean = (product @ exact_weight)[..., None].div_(x.shape[-1])
        of_x = torch.mul(gradient, exact_weight, out=product)
        of_x = of_x.addcmul_(normed, mean, value=-1).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


class _SwiGLU(torch.autograd.Function):
    """``silu(gate) * up`` (Shazeer 2020, section 2), with the same rounding as autograd."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return of_gate, F.silu(gate).mul_(gradient)
