"""Which models compute packed rows, and how full their rows are."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from agents.local.forward import trial_of, trunk_of
from rl.packing.attention import longest_row, prepare
from rl.packing.parts import parts_of

logger = logging.getLogger(__name__)

PLAIN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types in which a position reads only positions to its left, with or without padding."""
CPU_ROW_TOKENS = 1024
"""Number of tokens to which packed rows are filled on a CPU. Longer rows do not fit into its
caches."""
_padded: set[str] = set()
"""Model types whose rows are padded. The log names each type once."""


def needs_mask(model: PreTrainedModel) -> bool:
    """Whether the model needs an attention mask for padding on the right.

    Plain causal attention needs no mask, and a mask would select a slower kernel. State-space,
    convolution and linear-attention layers need one: they are also causal, but may carry a state
    over the whole row.
    """
    # A flag of transformers for models whose caches cannot be cut short.
    if getattr(model, "_is_stateful", False):
        return True
    config = model.config.to_dict()
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return not set(layer_types) <= PLAIN_LAYERS
    return "num_attention_heads" not in config and "n_head" not in config


def can_pack(model: PreTrainedModel, *, warns: bool) -> bool:
    """Prepare a model for packed rows. Returns whether it can compute them.

    Args:
        model: a model, with or without its head.
        warns: whether the log states the reason if it cannot.
    """
    # A state's leak into the next sequence can be too small to measure before training.
    reason = "a layer's state passes from row to row" if needs_mask(model) else prepare(model)
    if reason is not None and warns:
        _say_padded(model, reason)
    return reason is None


@torch.no_grad()
def check_padded(model: PreTrainedModel) -> None:
    """Check that padding on the right changes no token's state in rows that are not packed.

    Raises:
        ValueError: tokens read later ones, as in CPM-Ant, or padding disturbs them.
    """
    trial = trial_of(model)
    ids = torch.arange(11, device=model.device)[None] % model.config.get_text_config().vocab_size
    mask = (ids < 6).long() if needs_mask(model) else None
    trunk = trunk_of(trial)
    padded = trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :6]
    alone = trunk(input_ids=ids[:, :6], use_cache=False).last_hidden_state
    if not (padded - alone).abs().max() <= 1e-3 * alone.abs().max():
        raise ValueError(
            f"model_type ({model.config.model_type}) computes a token's state from later tokens "
            f"or from padding: use a causal language model (Qwen, Llama, Mistral, GPT-2, ...)"
        )


class PackingModel:
    """Base class of models whose rows are packed, if :func:`can_pack` prepared the model."""

    model: PreTrainedModel
    packs = False
    """Whether rows are packed."""

    def fill_tokens(self, longest: int, max_tokens: int) -> int:
        """Number of tokens to which packed rows are filled, or 0 if rows are padded.

        Args:
            longest: number of tokens of the longest sequence. Some models cannot pack long ones.
            max_tokens: maximum tokens of a forward pass.
        """
        if not self.packs:
            return 0
        limit = longest_row(self.model)
        if limit is None or longest <= limit:
            return CPU_ROW_TOKENS if self.model.device.type == "cpu" else max_tokens
        _say_padded(
            self.model,
            f"a row has {longest} tokens, and beyond {limit} a layer reads only the newest tokens "
            f"or rotates all of them differently",
        )
        return 0

    def parts(self, units: Sequence[Sequence[Sequence[int]]], max_tokens: int) -> list[list[int]]:
        """Divide units of sequences into forward passes; see :func:`rl.packing.parts.parts_of`."""
        longest = max((len(ids) for unit in units for ids in unit), default=0)
        return parts_of(units, max_tokens, self.fill_tokens(longest, max_tokens))


def _say_padded(model: PreTrainedModel, reason: str) -> None:
    family = model.config.model_type
    if family not in _padded:
        _padded.add(family)
        logger.warning("the learner pads rows of %s instead of packing them: %s", family, reason)
