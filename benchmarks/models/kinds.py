"""Tiny random models of every kind that transformers can load as a causal language model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 96
POSITIONS = 4096
LARGEST = 14_000_000
"""Parameters: a kind whose configuration cannot be made smaller is left out."""
_SIZES: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    32: "hidden_size n_embd d_model dim model_dim embed_dim word_embed_proj_dim embedding_size",
    48: "intermediate_size ffn_dim n_inner d_ff ffn_hidden_size dense_intermediate_size lru_width "
    "decoder_ffn_dim encoder_ffn_dim dim_ff",
    24: "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size",
    4: "num_hidden_layers n_layer num_layers n_layers decoder_layers num_attention_heads n_head "
    "num_heads n_heads decoder_attention_heads encoder_layers encoder_attention_heads num_experts "
    "n_routed_experts num_local_experts moe_num_experts",
    1: "n_group topk_group num_expert_group",
    2: "num_key_value_heads num_kv_heads num_experts_per_tok num_experts_per_token moe_k moe_topk "
    "num_decoder_layers",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim hidden_size_per_layer_input",
    16: "q_lora_rank kv_lora_rank qk_head_dim",
    POSITIONS: "max_position_embeddings n_positions n_ctx max_seq_len context_length "
    "max_sequence_length seq_length max_target_positions",
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], **_MAMBA},
    "codegen": {"rotary_dim": 4},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 64, **_MAMBA},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2, **_MAMBA},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "roc_bert": {"pronunciation_vocab_size": 96, "shape_vocab_size": 96},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a kind needs beside the sizes above, so that each sort of its layers is there."""


def kinds() -> list[str]:
    """The model types that ``AutoModelForCausalLM`` knows."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(kind: str) -> PretrainedConfig:
    """The kind's configuration with small sizes, and one layer of each sort at least."""
    config: Any = CONFIG_MAPPING[kind]()
    text = config.get_text_config(decoder=True)
    given = _small(text.to_dict()) | _OWN.get(text.model_type, {})
    if text is config:
        return type(config)(**given)
    key = next((name for name, value in vars(config).items() if value is text), None)
    return type(config)(**given) if key is None else type(config)(**{key: given})


def _small(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a configuration: its small sizes, by name."""
    given: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if "kv_lora_rank" in values:
        # Latent attention has as many keys as queries, and their width has two parts.
        given |= {"num_key_value_heads": 4}
    for size, names in _SIZES.items():
        for name in names.split():
            if name in values and isinstance(values[name], int | list | None):
                given.setdefault(name, size)
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(found := values.get(name), list):
            given[name] = _sorts(found, 4)
    if "is_decoder" in values:
        given["is_decoder"] = True
    return given


def _sorts(layers: list[str], count: int) -> list[str]:
    """``count`` layers, with each sort of ``layers`` among them."""
    sorts = list(dict.fromkeys(layers))
    return (sorts * count)[:count]


def tiny_model(kind: str, seed: int = 0, *, moved: bool = True) -> PreTrainedModel:
    """A model of a kind, in float32 and evaluation mode, with random weights.

    Args:
        kind: the model type.
        seed: seed of the weights.
        moved: whether all weights differ from their initial values, as after training: weights that
            start at 0, 1 or close to 0 hide what a layer does.

    Raises:
        ValueError: transformers cannot build it, or not small.
    """
    try:
        config = tiny_config(kind)
        with torch.device("meta"):
            size = _made(config).num_parameters()
    except Exception as error:
        raise ValueError(f"does not build: {type(error).__name__}: {error}") from error
    if size > LARGEST:
        raise ValueError(f"does not build small: {size:,} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(config)
        if moved:
            move(model)
    return model.eval()


def _made(config: PretrainedConfig) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    return model


@torch.no_grad()
def move(model: PreTrainedModel) -> None:
    """Add noise to all weights, in place."""
    for parameter in model.parameters():
        spread = 0.1 if parameter.ndim < 2 else 0.7 / parameter.shape[-1] ** 0.5
        parameter.add_(torch.randn_like(parameter) * spread)


def all_tiny(names: list[str]) -> Iterator[tuple[str, PreTrainedModel | str]]:
    """Each kind with its model, or with the reason why there is none."""
    for kind in names:
        try:
            yield kind, tiny_model(kind)
        except ValueError as error:
            yield kind, str(error).splitlines()[0]
