"""A model that a real vLLM server loads quickly, and a prober for it."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.serving import Prober
from rl.learner.lora import add_adapter
from rl.learner.model import score_tokens
from rl.settings.lora import LoraConfig

WINDOW = 256
VOCAB = 259


def new_adapted(base: str, rank: int = 8):
    """The model of `new_model` with a LoRA adapter, both of whose matrices are random."""
    model = new_model()
    add_adapter(model, LoraConfig(rank=rank), base, seed=1)
    nudge(model, 0.1)
    return model


def new_model(seed: int = 0):
    """A Qwen3 of two layers with a tied head and distributions of medium entropy."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        eos_token_id=258,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def nudge(model, scale: float = 0.02) -> None:
    """Change every trained weight a little, as an update does."""
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.add_(torch.randn_like(parameter) * scale)


def prober_of(model, **changes) -> Prober:
    """A prober that scores with ``model``."""
    settings = {"sampling": SamplingParams(temperature=0.7), "tolerance": 1e-4} | changes
    return Prober(scores_of(model), VOCAB, **settings)


def scores_of(model):
    """Function with which a prober computes the model's log-probabilities."""

    async def score(*sequence):
        return score_tokens(model, *sequence)

    return score
