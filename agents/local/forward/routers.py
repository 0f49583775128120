"""Routers of a mixture of experts: recording which experts computed each token, and repeating it.

A router gives each token to the experts with the highest scores. The sampler and the learner round
differently, and with ``staleness`` they have different weights, so they can choose different
experts for the same token, and its log-probabilities then differ by far more than rounding.
Routing replay lets the learner use the sampler's experts: it selects their scores instead of the
highest ones, so the gradient still reaches the router (Ma et al. 2025, arXiv 2510.11370, section
4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CLASS = re.compile(r"topkrouter$", re.IGNORECASE)
"""Classes of routers in transformers end in this: Qwen3MoeTopKRouter, DeepseekV3TopkRouter."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_TOP_K: tuple[Callable[..., Any], ...] = (torch.topk, Tensor.topk)


class TopK(NamedTuple):
    """What a router selected."""

    values: Tensor
    """``[T, K]``, the scores of the experts."""
    indices: Tensor
    """``[T, K]``, the experts."""


class Selection(Protocol):
    """Sees, and can change, what each router selects."""

    def select(self, layer: int, scores: Tensor, chosen: TopK) -> TopK:
        """The experts to use in a layer.

        Args:
            layer: number of the decoder layer, from 0.
            scores: ``[T, E]``, the score of each expert for each token.
            chosen: the experts with the highest scores.
        """
        ...


_SELECTION: ContextVar[Selection | None] = ContextVar("selection", default=None)


class Recording:
    """Keeps the experts of each layer's newest forward pass."""

    def __init__(self) -> None:
        self.experts: dict[int, Tensor] = {}
        """By layer, ``[T, K]``."""

    def select(self, layer: int, scores: Tensor, chosen: TopK) -> TopK:
        """Keep the choice; see :class:`Selection`."""
        self.experts[layer] = chosen.indices
        return chosen


class Replay:
    """Repeats a recorded choice of experts.

    Args:
        experts: ``[T, layers, K]`` integers: the experts of each token in each decoder layer. A
            token for which they are negative uses the model's own choice.
    """

    def __init__(self, experts: Tensor) -> None:
        self._experts = experts

    def select(self, layer: int, scores: Tensor, chosen: TopK) -> TopK:
        """The recorded experts, with their current scores; see :class:`Selection`."""
        recorded = self._experts[:, layer].long()
        indices = torch.where(recorded >= 0, recorded, chosen.indices)
        return TopK(scores.gather(-1, indices), indices)


@contextmanager
def using(selection: Selection | None) -> Iterator[None]:
    """Let the routers that :func:`prepare` found ask ``selection`` while the context lasts."""
    before = _SELECTION.set(selection)
    try:
        yield
    finally:
        _SELECTION.reset(before)


def selection_in_use() -> Selection | None:
    """The selection of the innermost :func:`using`, which a recomputed layer must use again."""
    return _SELECTION.get()


class Routing(NamedTuple):
    """Sizes of a model's routing."""

    num_layers: int
    """Number of decoder layers, those without a router included."""
    top_k: int
    """Number of experts of a token in a layer."""
    num_experts: int
    """Number of experts of a layer."""

    @property
    def dtype(self) -> type[np.integer[Any]]:
        """The smallest type for the number of an expert."""
        return np.uint8 if self.num_experts <= 256 else np.int16


def prepare(model: nn.Module) -> Routing | None:
    """Make the model's routers ask the selection in use. Returns None if it has no routers.

    A repeated call changes nothing. Without a selection, the model computes what it did before.
    """
    routers = [(name, m) for name, m in model.named_modules() if _CLASS.search(type(m).__name__)]
    layers = [_LAYER.search(name) for name, _ in routers]
    sizes = {(int(getattr(r, "top_k", 0)), _num_experts(r)) for _, r in routers}
    if None in layers or len(sizes) != 1:
        return None
    [(top_k, num_experts)] = sizes
    for found, (_, router) in zip(layers, routers, strict=True):
        assert found is not None
        if not (isinstance(router.forward, partial) and router.forward.func is _routed):
            router.forward = partial(_routed, router.forward, int(found[1]), num_experts)
    config: Any = model.config
    num_layers = int(config.get_text_config().num_hidden_layers)
    return Routing(num_layers, top_k, num_experts) if top_k else None


def _num_experts(router: nn.Module) -> int:
    """Number of the router's experts: its own statement, or the rows of its weight."""
    return int(getattr(router, "num_experts", 0)) or len(next(router.parameters()))


def _routed(forward: Callable[..., Any], layer: int, count: int, *args: Any, **given: Any) -> Any:
    """A router's forward pass. ``count`` is the number of its experts."""
    selection = _SELECTION.get()
    if selection is None:
        return forward(*args, **given)
    with _Asking(selection, layer, count):
        return forward(*args, **given)


class _Asking(TorchFunctionMode):
    """Asks a selection after the call of ``topk`` over all experts.

    Routers differ in what they do with the scores before and after this call, and some select
    groups of experts first, by other calls of ``topk``.
    """

    def __init__(self, selection: Selection, layer: int, count: int) -> None:
        super().__init__()
        self._selection, self._layer, self._count = selection, layer, count

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _TOP_K:
            return result
        scores = args[0] if args else kwargs["input"]
        if scores.ndim != 2 or scores.shape[-1] != self._count:
            return result
        return self._selection.select(self._layer, scores, TopK(*result))
