"""Copying named weights into a model, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel


def check_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless ``weights`` name every tensor of the model, in its shape.

    Tied tensors have several names: one of them is enough.
    """
    state = model.state_dict()
    unknown = sorted(set(weights) - set(state))
    if unknown:
        raise ValueError(
            f"weights name {unknown[0]!r} ({len(unknown)} such), which is no tensor "
            f"of {type(model).__name__}: pass names as its state_dict() has them"
        )
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"weights[{name!r}] has shape {tuple(tensor.shape)}, the model's has "
                f"{tuple(state[name].shape)}: pass weights of the same architecture"
            )
    given = {state[name].data_ptr() for name in weights}
    missing = sorted(name for name, tensor in state.items() if tensor.data_ptr() not in given)
    if missing:
        raise ValueError(f"weights lack {missing[0]!r} ({len(missing)} such): pass all of them")


def copy_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Write ``weights``, which :func:`check_weights` accepted, into the model's own tensors."""
    state = model.state_dict()
    # In inference mode the write would go unseen by autograd's check of saved tensors.
    with torch.inference_mode(False), torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)
