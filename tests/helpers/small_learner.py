"""A model and episodes small enough to check by hand."""

import numpy as np
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agents.completion import Completion, FinishReason
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

VOCABULARY = 23


def build_model(seed=0, dtype=torch.float32, layers=2, **options):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        **options,
    )
    model = LlamaForCausalLM(config)
    # Larger than the default, so that distributions are far from uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
            # Rotary frequencies stay in float32, as in a model that is loaded.
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def build_routed():
    """A DeepSeek-V3, whose router stays in float32 in any model: a dense layer and a mixture."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "v_head_dim": 4}
    ranks = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
    groups = {"n_group": 1, "topk_group": 1, "num_hidden_layers": 2, "first_k_dense_replace": 1}
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = DeepseekV3Config(
        **sizes, **experts, **heads, **ranks, **groups, **ids, max_position_embeddings=128
    )
    model = DeepseekV3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    return model.eval()


def build_mixture(seed=0):
    """A Qwen3 with four experts in each layer, of which a token uses two."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    return model.eval()


def build_trajectory(turns, *, seed=0, member=0, logprobs=-3.0, failure=None):
    """``turns`` is a list of (prompt tokens, sampled tokens, reward)."""
    generator = np.random.default_rng((seed, member))
    segment, records = Segment(), []
    for index, (context, sampled, reward) in enumerate(turns):
        segment.append_context(generator.integers(2, VOCABULARY, context).tolist(), index)
        ids = tuple(generator.integers(2, VOCABULARY, sampled).tolist())
        completion = Completion(ids, (logprobs,) * sampled, (0,) * sampled, FinishReason.STOP_TOKEN)
        segment.append_completion(completion, index)
        value = float(generator.random())
        records.append(Turn("", "", "stop_token", sampled, {"task": reward}, value=value))
    return Trajectory(
        "test", {}, 0, seed, member, [segment], records, terminated=not failure, failure=failure
    )


def build_group(shapes, *, seed=0):
    """One trajectory for each entry of ``shapes``."""
    return TrajectoryGroup(
        [build_trajectory(turns, seed=seed, member=i) for i, turns in enumerate(shapes)]
    )
