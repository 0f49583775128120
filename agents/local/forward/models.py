"""What the forward passes need to know about a model: its family, context window and cache."""

from __future__ import annotations

from typing import Any

from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

_THIN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
"""RoPE variants whose frequencies change with the longest sequence: cached keys become stale."""


def thin_obstacle(model: PreTrainedModel, context_window: int) -> str | None:
    """The reason why :class:`ThinForward` does not support this model, or None if it does."""
    if type(model) not in _THIN:
        return "does not support this architecture"
    config: Any = model.config
    rope_type = config.rope_parameters["rope_type"]
    if rope_type in POSITION_DEPENDENT_ROPE:
        return f"does not support rotary embeddings of type {rope_type!r}"
    window = None if isinstance(model, LlamaForCausalLM) else config.sliding_window
    if window is not None and window < context_window:
        return f"has no window of {window} of {context_window} positions"
    return None


def trunk_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its output head."""
    trunk = model.base_model
    if trunk is model:
        # Llama 4 names its trunk as in its models with a vision tower, which this one lacks.
        parts = [part for part in model.children() if isinstance(part, PreTrainedModel)]
        trunk = parts[0] if parts else model
    assert isinstance(trunk, PreTrainedModel)
    return trunk


def attention_obstacle(config: PretrainedConfig) -> str | None:
    """The reason why a model's attention is computed by its own code alone, or None."""
    text: Any = config.get_text_config()
    if getattr(text, "attn_temperature_tuning", False):
        return "a layer reads a token's column in its row as its position"
    kept = getattr(text, "keep_window_size", None)
    if kept is not None and kept < context_window(config):
        return f"a layer chooses {kept} of the tokens that it reads"
    return None


def context_window(config: PretrainedConfig) -> int:
    """Maximum number of tokens in one sequence of the model.

    Raises:
        ValueError: the configuration states none.
    """
    window: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if window is None:
        raise ValueError(
            f"the model is of type {config.model_type}, whose config.json states no context "
            "window (max_position_embeddings): set one, or use another model"
        )
    return window


def rope_window(config: PretrainedConfig) -> int | None:
    """Longest sequence, in tokens, for which rotary embeddings do not depend on its length.

    None if the embeddings never depend on the sequence's length.
    """
    text: Any = config.get_text_config()
    given = getattr(text, "rope_parameters", None) or {}
    windows = []
    # One set of parameters, or one for each type of layer.
    for rope in [given] if "rope_type" in given else given.values():
        if isinstance(rope, dict) and rope.get("rope_type") in POSITION_DEPENDENT_ROPE:
            windows += [rope.get("original_max_position_embeddings"), text.max_position_embeddings]
    return min((window for window in windows if window), default=None)


def position_bytes(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token in all layers."""
    config: Any = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize
    return size
