"""Models that copy a digit of 0, 1, 2 a little too seldom, made by imitation."""

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agents.renderer import Renderer
from envs.env import EnvOptions
from rl.data.demonstrations import demonstrate
from rl.learner.checkpoint import save_checkpoint
from rl.learner.settings import OptimizerConfig
from rl.runtime.imitation import imitate, supervised
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe

RECIPE = TinyRecipe(
    hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, context_length=48
)


async def save_toy(folder, make):
    """Train the model that ``make`` returns for a tokenizer, and save it."""
    options = EnvOptions(max_turns=2)
    demonstrations = await demonstrate("toy-copy-v0", options, {}, list(range(96)) * 4, seed=0)
    tokenizer = train_tokenizer(demonstrations, vocab_size=261)
    model = make(tokenizer)
    renderer = Renderer(tokenizer)
    await imitate(
        supervised(model, OptimizerConfig(lr=5e-3, warmup_steps=10)),
        [d.to_segment(renderer) for d in demonstrations],
        steps=80,
        batch_size=16,
        seed=0,
    )
    save_checkpoint(folder, model, tokenizer)


def dense(tokenizer):
    return new_model(tokenizer, RECIPE, seed=0)


def mixture(tokenizer):
    """A Qwen3 of two layers, each with eight experts, of which a token uses two."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3MoeForCausalLM(config).eval()
