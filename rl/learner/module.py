"""The one module through which the learner computes: trunk, head and value head under one root.

A sharded learner needs one root. FSDP2 gathers a module's parameters when its ``forward`` begins,
so weights that are read from outside of the root's ``forward`` are empty shards.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl.credit.batch import MicroBatch
from rl.learner.head import token_head

PLAIN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types in which a position reads only positions to its left, padded or not."""


class Scores(NamedTuple):
    """The scores of n tokens. A tuple, so that FSDP2 finds the tensors whose gradients begin."""

    logprobs: Tensor
    """``[n]``, under the sampling temperature."""
    entropy: Tensor
    """``[n]``, of each token's distribution, in nats."""
    values: Tensor | None
    """``[n]``; None without a value head."""


class ScoringModule(nn.Module):
    """A causal language model and its critic, which score the tokens of micro-batches.

    Args:
        model: used in place, not copied.
        with_values: whether there is a value head: one linear layer on the last hidden state, 0 at
            the start, in float32 (float64 for a float64 model).
        own_trunk: whether values come from a copy of the model's trunk, which is trained apart.
    """

    def __init__(
        self, model: PreTrainedModel, *, with_values: bool = False, own_trunk: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        head = model.get_output_embeddings()
        assert isinstance(head, nn.Linear), "a causal language model ends in a linear layer"
        self.value_head: nn.Linear | None = None
        self.value_trunk: nn.Module | None = None
        if with_values:
            self.value_head = nn.Linear(
                head.in_features, 1, device=head.weight.device, dtype=self.dtype
            )
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        if with_values and own_trunk:
            self.value_trunk = copy.deepcopy(self.trunk)
        self._needs_mask = needs_mask(model)

    @property
    def trunk(self) -> nn.Module:
        """The model without its head."""
        trunk: nn.Module = self.model.base_model
        return trunk

    @property
    def head(self) -> nn.Linear:
        """From the last hidden state to logits."""
        head = self.model.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        return head

    @property
    def dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 for a float64 model."""
        return torch.promote_types(self.head.weight.dtype, torch.float32)

    def forward(self, micro: MicroBatch, temperature: float) -> Scores:
        """Score the micro-batch's tokens; the head is run only at positions that predict one.

        Where top-k or top-p cut the distribution that a token was sampled from, its distribution
        here is cut equally.

        Args:
            micro: on the model's device.
            temperature: logits are divided by it.
        """
        hidden = self._sources(micro, self.trunk)
        head = self.head
        logprobs, entropy = token_head(
            hidden, head.weight, head.bias, micro.targets, temperature, micro.support
        )
        values = None
        if self.value_head is not None:
            if self.value_trunk is not None:
                hidden = self._sources(micro, self.value_trunk)
            values = self.value_head(hidden.to(self.dtype))[:, 0]
        return Scores(logprobs, entropy, values)

    def logits(self, input_ids: Tensor) -> Tensor:
        """The head's output at each position: ``[B, T, V]``."""
        logits: Tensor = self.head(self._hidden(self.trunk, input_ids, None))
        return logits

    def _sources(self, micro: MicroBatch, trunk: nn.Module) -> Tensor:
        """The last hidden state that predicts each token: ``[n, H]``."""
        lengths = micro.lengths if self._needs_mask else None
        hidden = self._hidden(trunk, micro.input_ids, lengths)
        return hidden.flatten(0, 1).index_select(0, micro.source)

    def _hidden(self, trunk: nn.Module, input_ids: Tensor, lengths: Tensor | None) -> Tensor:
        mask = None
        if lengths is not None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            mask = (positions < lengths[:, None]).long()
        output = trunk(input_ids=input_ids, attention_mask=mask, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden


def needs_mask(model: PreTrainedModel) -> bool:
    """Whether padding on the right is announced to the model.

    Not to plain causal attention, where the mask would only choose a slower kernel. Announced to
    everything else: state-space, convolution and linear-attention layers are causal too, but may
    carry a state over the whole row.
    """
    config = model.config.to_dict()
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return not set(layer_types) <= PLAIN_LAYERS
    return "num_attention_heads" not in config and "n_head" not in config
