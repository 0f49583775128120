"""Tiny models of every family, perturbed so that log-probabilities are far from 0 and from flat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from agents.local import LocalPolicy

VOCAB = 259
WINDOW = 256


def tiny_model(kind: str) -> Any:
    """A model with random weights; the same for the same kind."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model: Any
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=32, tie_word_embeddings=True))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    elif kind == "llama":
        scaled = {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        model = LlamaForCausalLM(
            LlamaConfig(**shape, attention_bias=True, mlp_bias=True, rope_parameters=scaled)
        )
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=None))
    elif kind == "mistral-sliding":
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=8))
    elif kind == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        model = Gemma3ForCausalLM(
            Gemma3TextConfig(**shape, head_dim=32, sliding_window=8, layer_types=layers)
        )
    elif kind == "phi3":
        model = Phi3ForCausalLM(Phi3Config(**shape, pad_token_id=None, sliding_window=16))
    elif kind == "olmo2":
        model = Olmo2ForCausalLM(Olmo2Config(**shape))
    elif kind == "smollm3":
        model = SmolLM3ForCausalLM(
            SmolLM3Config(**shape, pad_token_id=None, no_rope_layers=[1, 0, 1])
        )
    elif kind == "granite":
        model = GraniteForCausalLM(GraniteConfig(**shape, logits_scaling=2.0))
    elif kind == "qwen3-moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts, head_dim=32))
    elif kind == "gpt-neo":
        model = GPTNeoForCausalLM(
            GPTNeoConfig(
                vocab_size=VOCAB,
                max_position_embeddings=WINDOW,
                hidden_size=64,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=8,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    else:
        assert kind == "gpt2"
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCAB,
                n_positions=WINDOW,
                n_embd=64,
                n_layer=2,
                n_head=4,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
        if kind == "gemma3":
            # The embeddings are also the head: as large, they would make every token certain.
            model.model.embed_tokens.weight *= 0.3
    return model.eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte (ids in byte-level alphabet order), and three control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary |= {name: 256 + i for i, name in enumerate(control)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(control)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@pytest.fixture
def make_model() -> Callable[[str], Any]:
    return tiny_model


@pytest.fixture
async def make_policy(
    tokenizer: PreTrainedTokenizerFast,
) -> AsyncIterator[Callable[..., LocalPolicy]]:
    """Makes policies (a kind or a model, then LocalPolicy's options) and closes them."""
    made: list[LocalPolicy] = []

    def make(model: Any = "qwen3", **options: Any) -> LocalPolicy:
        if isinstance(model, str):
            model = tiny_model(model)
        made.append(LocalPolicy(model, tokenizer, **options))
        return made[-1]

    yield make
    for policy in made:
        await policy.close()
