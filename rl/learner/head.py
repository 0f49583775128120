"""Log-probabilities and entropies of tokens without the whole table of logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Logits held at once: 64 MiB in float32, 110 positions of a vocabulary of 152k."""


def token_head(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, under the temperature.

    The logits of a chunk of positions are made, used and dropped, and made again in the backward
    pass. Softmax and logarithm are float32 (float64 for a float64 model) whatever the model's type.

    Args:
        hidden: ``[n, H]``.
        weight: ``[V, H]``.
        bias: ``[V]`` or None.
        targets: ``[n]`` token ids.
        temperature: logits are divided by it.

    Returns:
        ``logprobs`` and ``entropy``, both ``[n]``; both are differentiable.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = _TokenHead.apply
    return apply(hidden, weight, bias, targets, temperature)


def _scaled_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.to(_precision(logits.dtype)).div_(temperature)


def _precision(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _TokenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
        logprobs, entropy = [], []
        for h, target in zip(hidden.split(rows), targets.split(rows), strict=True):
            log_p = _scaled_logits(h, weight, bias, temperature).log_softmax(-1)
            logprobs.append(log_p.gather(1, target[:, None])[:, 0])
            entropy.append(log_p.exp().mul_(log_p).sum(-1).neg_())
        out = torch.cat(logprobs), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, bias, targets, out[1])
        ctx.temperature, ctx.rows = temperature, rows
        return out

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        wanted = dict(zip(("hidden", "weight", "bias"), ctx.needs_input_grad, strict=False))
        sums = _precision(weight.dtype)
        grad_hidden = torch.empty_like(hidden) if wanted["hidden"] else None
        grad_weight = torch.zeros_like(weight, dtype=sums) if wanted["weight"] else None
        grad_bias = torch.zeros_like(bias, dtype=sums) if wanted["bias"] else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            h = hidden[part]
            log_p = _scaled_logits(h, weight, bias, ctx.temperature).log_softmax(-1)
            grad = _grad_logits(
                log_p,
                targets[part],
                entropy[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
            )
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad.T, h)
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=sums)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, without a second matrix of that size where the types allow it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _grad_logits(
    log_p: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """``g (onehot - p) - g_entropy p (log p + entropy)``, the gradient of the scaled logits.

    It takes the place of ``log_p``.
    """
    slope = torch.zeros_like(entropy)[:, None]
    if grad_logprobs is not None:
        slope = slope - grad_logprobs[:, None]
    if grad_entropy is not None:
        slope = slope - grad_entropy[:, None] * (log_p + entropy[:, None])
    grad = log_p.exp_().mul_(slope)
    if grad_logprobs is not None:
        grad.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return grad
