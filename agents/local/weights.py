"""Detects changes of a model's weights, and copies weights into a model and verifies them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from transformers import PreTrainedModel

from agents.policy import PolicyFailure


class WeightWatch:
    """Detects that the weights of a generating model were changed."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.accept()
        # Fused optimizers bypass the tensors' version counters; every optimizer calls this hook.
        mine = weakref.ref(self)

        def stepped(optimizer: Optimizer, args: object, kwargs: object) -> None:
            watch = mine()
            if watch is not None:
                watch._note(optimizer)

        weakref.finalize(self, register_optimizer_step_post_hook(stepped).remove)

    def accept(self) -> None:
        """Treat the current weights as valid."""
        self._parameters = list(self._model.parameters())
        self._ids = {id(parameter) for parameter in self._parameters}
        self._stepped = False
        self._prints = self._fingerprints()

    def changed(self) -> bool:
        """Whether a weight was changed or moved since the last :meth:`accept`."""
        return self._stepped or self._fingerprints() != self._prints

    def _note(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        if any(id(parameter) in self._ids for group in groups for parameter in group["params"]):
            self._stepped = True

    def _fingerprints(self) -> list[tuple[int, int]]:
        return [(parameter.data_ptr(), parameter._version) for parameter in self._parameters]


def check_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless ``weights`` contain every tensor of the model, with its shape.

    One of the names of tied tensors is enough.
    """
    state = model.state_dict()
    unknown = sorted(set(weights) - set(state))
    if unknown:
        raise ValueError(
            f"weights have {unknown[0]!r} ({len(unknown)} unknown names), which is no tensor "
            f"of {type(model).__name__}: use the names of its state_dict()"
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
        raise ValueError(f"weights lack {missing[0]!r} ({len(missing)} missing): pass all of them")


def copy_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy ``weights`` into the model's tensors. :func:`check_weights` must have accepted them."""
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)


def verify_weights(
    model: PreTrainedModel, weights: Mapping[str, torch.Tensor], version: int
) -> None:
    """Raise PolicyFailure unless the model's bits are those of ``weights`` in the model's type."""
    state = model.state_dict()
    for name, tensor in weights.items():
        if not torch.equal(_bytes(state[name]), _bytes(tensor.to(state[name]))):
            raise PolicyFailure(
                f"the policy does not run version {version} of the weights: {name} has other "
                "values than the learner sent",
                retryable=False,
            )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Equal nans have equal bytes.
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
