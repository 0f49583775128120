"""A small copy of a model in float32, on which ways of computing it are compared exactly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_PRECISE = (torch.float32, torch.float64)


def trial_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, if its weights are float32 or float64; otherwise a copy in float32.

    In bfloat16 a wrong way of computing a model can differ less from the right one than two right
    ways do. The copy has the first layers, with one of each sort among them, and weights that are
    changed at random: a new model's hide what a layer does, because they are close to 0 or to 1.
    """
    if model.dtype in _PRECISE:
        return model
    cut = _copied(model, _layers(model))
    return cut if _computes(cut) else _copied(model, None)


def _layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """The list of the model's layers, or None if it is not plain which one that is."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return lists[0] if len(lists) == 1 else None


def _copied(model: PreTrainedModel, layers: nn.ModuleList | None) -> PreTrainedModel:
    whole = None if layers is None else layers._modules
    if layers is not None:
        kept = list(layers._modules.items())[: _enough(model, layers)]
        layers._modules = dict(kept)
    try:
        made = copy.deepcopy(model)
    finally:
        if layers is not None and whole is not None:
            layers._modules = whole
    return _moved(made.requires_grad_(False))


def _enough(model: PreTrainedModel, layers: nn.ModuleList) -> int:
    """How many of the first layers have one of each sort among them; at least two."""
    named: Any = getattr(model.config.get_text_config(), "layer_types", None)
    kinds = named if isinstance(named, list) and len(named) == len(layers) else [""] * len(layers)
    sorts = [(kind, _sort(layer)) for kind, layer in zip(kinds, layers, strict=True)]
    return max(2, 1 + max(map(sorts.index, sorts)))


def _sort(layer: nn.Module) -> tuple[object, ...]:
    """What distinguishes a layer from others: the classes of its parts, and their flags."""
    return tuple(
        (name, type(part).__name__, flag, value if isinstance(value, bool | str) else None)
        for name, part in layer.named_modules()
        for flag, value in sorted(vars(part).items())
        # A window is a number, or None.
        if value is None or isinstance(value, bool | str)
    )


@torch.no_grad()
def _moved(model: PreTrainedModel) -> PreTrainedModel:
    """``model`` with all weights in float32 and changed, in place."""
    drawn = torch.Generator(model.device).manual_seed(0)
    _unpack(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
        parameter.add_(_noise(parameter, drawn))
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.float()
    return model


def _noise(like: Tensor, drawn: torch.Generator) -> Tensor:
    spread = 0.1 if like.ndim < 2 else 0.7 / like.shape[-1] ** 0.5
    noise = torch.empty(like.shape, device=like.device)
    return noise.normal_(0.0, spread, generator=drawn)


def _unpack(model: nn.Module) -> None:
    """Replace linear layers whose weights are packed, as in 4 bits, by plain ones of zeros."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.Linear) and not part.weight.is_floating_point():
                sizes, device = (part.in_features, part.out_features), part.weight.device
                plain = nn.Linear(*sizes, bias=part.bias is not None, device=device)
                for parameter in plain.parameters():
                    parameter.requires_grad_(False).zero_()
                setattr(module, name, plain)


def _computes(model: PreTrainedModel) -> bool:
    """Whether a forward pass does not fail, as it may if the model counts its layers."""
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return False
    return True
