"""Counts the memory of the reward models and judges of ``shaping=``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from agents.local.forward import trunk_of
from rl.planning.live_bytes import LiveBytes, size_of, without_memory

MAX_TOKENS = 4096
"""Tokens of a forward pass in which a reward model scores several short episodes."""


@dataclass(frozen=True, slots=True)
class ScorerMemory:
    """Bytes of a model that only scores."""

    weights: int
    activations: int
    """Bytes at the peak of a forward pass, without the weights."""


def scorer_memory(
    config: PretrainedConfig, *, classifier: bool, dtype: torch.dtype, row: int
) -> ScorerMemory:
    """The memory of a reward model or judge.

    Args:
        config: the model's configuration.
        classifier: whether the model is a sequence classifier, not a causal language model.
        dtype: type of the weights.
        row: number of tokens of the longest episode.
    """
    auto: Any = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = auto.from_config(config, dtype=dtype)
    model.eval()
    tokens = max(row, MAX_TOKENS) if classifier else row
    with without_memory(), LiveBytes() as live, torch.no_grad():
        model.to_empty(device="cpu")
        model.tie_weights()
        live.count((*model.parameters(), *model.buffers()))
        before = live.now
        live.restart()
        trunk_of(model)(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        return ScorerMemory(size_of(model.parameters()), live.peak - before)
