"""Frozen linear layers whose weights have 4 or 8 bits, for the base model under an adapter.

The method is QLoRA's (Dettmers et al. 2023, arXiv 2305.14314): each block of 64 weights has a scale
in float32, and a product first computes the weights in the type of its input. 4 bits are QLoRA's
NormalFloat, 8 bits are bitsandbytes' dynamic type. Scales are not quantised again.

Bitsandbytes has such layers too, but in evaluation mode, in which the learner trains, they reorder
their weights on a CPU and then have no gradient (version 0.50).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl.learner.memory.linear import linear_layers, read_elsewhere

BLOCK = 64
"""Number of weights that share one scale."""


def quantize_linear_layers(
    model: PreTrainedModel, bits: Literal[4, 8], device: torch.device | str
) -> None:
    """Quantise all linear layers of ``model`` except the output head, in place.

    Embeddings, norms, convolutions, biases and layers whose weights other code reads keep their
    type.

    Args:
        model: a loaded model.
        bits: bits of a weight.
        device: device of the quantised weights. At most one full-precision layer is on it at a
            time.
    """
    for name, module in _products(model):
        model.set_submodule(name, QuantizedLinear(module, bits, device))


@torch.no_grad()
def round_linear_layers(
    model: PreTrainedModel, bits: Literal[4, 8], device: torch.device | str
) -> None:
    """Round weights to the values with which :func:`quantize_linear_layers` computes, in place.

    The weights keep their type and their full size.

    Args:
        model: a loaded model.
        bits: bits of a weight.
        device: the learner's device, whose kernels quantise the weights.
    """
    for _, module in _products(model):
        layer = QuantizedLinear(module, bits, device)
        module.weight.copy_(layer.dequantized(module.weight.dtype))


def _products(model: PreTrainedModel) -> list[tuple[str, nn.Linear]]:
    """The linear layers that compute with their weights alone, except the output head, by name."""
    read = read_elsewhere(model)
    return [(name, layer) for name, layer in linear_layers(model).items() if name not in read]


def num_weights(model: nn.Module) -> int:
    """Number of parameters of a model, each quantised weight counted as one."""
    quantized = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    stored = {id(tensor) for layer in quantized for tensor in layer.stored()}
    plain = sum(p.numel() for p in model.parameters() if id(p) not in stored)
    return plain + sum(layer.in_features * layer.out_features for layer in quantized)


class QuantizedLinear(nn.Linear):
    """A linear layer with frozen, quantised weights. Its input has a gradient, its weights do not.

    Args:
        linear: the layer with full precision, whose bias is kept.
        bits: bits of a weight.
        device: device of the quantised weights.
    """

    is_product = True
    """Whether the layer computes the product of its input and its weights, and nothing else."""

    def __init__(self, linear: nn.Linear, bits: Literal[4, 8], device: torch.device | str) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.bits = bits
        self.bias = linear.bias
        operators, weight = _operators(), linear.weight.detach().to(device)
        self.code: nn.Parameter | None = None
        if bits == 4:
            packed, scales = operators.quantize_4bit(weight, BLOCK, "nf4", torch.uint8)
        else:
            code = _dynamic_values().to(device)
            packed, scales = operators.quantize_blockwise(weight, code, BLOCK)
            self.code = _stored(code)
        self.weight = _stored(packed)
        self.scales = _stored(scales)

    def stored(self) -> list[Tensor]:
        """The tensors that store the quantised weights, their scales and any code table."""
        return [p for p in (self.weight, self.scales, self.code) if p is not None]

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weights, converted back to ``dtype``: ``[out_features, in_features]``."""
        operators, scales = _operators(), self.scales.view(torch.float32)
        weight: Tensor
        if self.code is None:
            # Flat: bitsandbytes' kernel for a CPU takes wrong scales where a block spans rows.
            flat = (self.out_features * self.in_features,)
            weight = operators.dequantize_4bit(self.weight, scales, BLOCK, "nf4", flat, dtype)
        else:
            code = self.code.view(torch.float32)
            weight = operators.dequantize_blockwise(self.weight, scales, code, BLOCK, dtype)
        return weight.view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        """The product of the input and the dequantised weights, and the bias."""
        product: Tensor = _Product.apply(input, self)  # type: ignore[no-untyped-call]
        return product

    def extra_repr(self) -> str:
        """The layer's sizes and bits."""
        return f"{super().extra_repr()}, bits={self.bits}"


class _Product(torch.autograd.Function):
    """The linear product. Both passes dequantise the weights, so autograd keeps no second copy."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(input, layer.dequantized(input.dtype), layer.bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad @ ctx.layer.dequantized(grad.dtype), None


def _stored(tensor: Tensor) -> nn.Parameter:
    """A frozen parameter with the data of ``tensor``.

    Floats are stored as integers, so that casts of the model do not round them.
    """
    whole = tensor.view(torch.int32) if tensor.is_floating_point() else tensor
    return nn.Parameter(whole, requires_grad=False)


def _operators() -> Any:
    """The operators that bitsandbytes adds to torch when it is imported."""
    import bitsandbytes  # noqa: F401

    return torch.ops.bitsandbytes


def _dynamic_values() -> Tensor:
    """The 256 values of bitsandbytes' dynamic type, on the CPU."""
    from bitsandbytes.functional import create_dynamic_map

    with torch.device("cpu"):
        values: Tensor = create_dynamic_map()
    return values
