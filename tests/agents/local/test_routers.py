"""Experts are recorded as the model computes, and repeated for any family of mixtures."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agents.completion import SamplingParams
from agents.local.forward.routers import Recording, Replay, Routing, prepare, using

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}
QWEN = {"moe_intermediate_size": 16, "num_experts": 6, "mlp_only_layers": [1]}
DEEPSEEK = {"moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
DEEPSEEK |= {"first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16}
DEEPSEEK |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
FAMILIES = {
    "qwen3-moe": (lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **QWEN)), [0, 2], 6),
    "mixtral": (lambda: MixtralForCausalLM(MixtralConfig(**SHAPE)), [0, 1, 2], 8),
    "olmoe": (lambda: OlmoeForCausalLM(OlmoeConfig(**SHAPE, num_experts=6)), [0, 1, 2], 6),
    "deepseek-v3": (
        lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**SHAPE, **DEEPSEEK)),
        [1, 2],
        8,
    ),
    "gpt-oss": (
        lambda: GptOssForCausalLM(GptOssConfig(**SHAPE, num_local_experts=6, head_dim=16)),
        [0, 1, 2],
        6,
    ),
}


class Both:
    """Repeats ``replay``, and keeps what the model then uses."""

    def __init__(self, replay):
        self.replay, self.used = replay, {}

    def select(self, layer, scores, chosen):
        found = self.replay.select(layer, scores, chosen)
        self.used[layer] = found.indices
        return found


@pytest.fixture(params=FAMILIES)
def family(request):
    make, layers, num_experts = FAMILIES[request.param]
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model, layers, num_experts


def outputs(model, ids, selection=None):
    with using(selection):
        return model(input_ids=ids, use_cache=False).logits


def test_a_recorded_choice_is_repeated(family):
    model, layers, num_experts = family
    ids = torch.randint(0, 61, (2, 9))
    alone = outputs(model, ids)
    assert prepare(model) == Routing(3, 2, num_experts)
    assert torch.equal(outputs(model, ids), alone)
    recording = Recording()
    assert torch.equal(outputs(model, ids, recording), alone)
    assert sorted(recording.experts) == layers
    assert all(x.shape == (18, 2) for x in recording.experts.values())
    experts = torch.zeros(18, 3, 2, dtype=torch.int16)
    for layer, chosen in recording.experts.items():
        experts[:, layer] = chosen
    torch.testing.assert_close(outputs(model, ids, Replay(experts)), alone)
    # A token without a record uses the model's own choice.
    unknown = torch.full_like(experts, -1)
    assert torch.equal(outputs(model, ids, Replay(unknown)), alone)


def test_other_experts_are_used_and_train_their_router(family):
    model, layers, num_experts = family
    prepare(model)
    ids = torch.randint(0, 61, (2, 9))
    alone = outputs(model, ids)
    drawn = np.random.default_rng(0)
    pairs = [drawn.choice(num_experts, 2, replace=False) for _ in range(18 * 3)]
    experts = torch.from_numpy(np.stack(pairs).reshape(18, 3, 2).astype(np.int16))
    both = Both(Replay(experts))
    logits = outputs(model, ids, both)
    assert all(torch.equal(both.used[layer], experts[:, layer].long()) for layer in layers)
    assert (logits - alone).abs().max() > 1e-2
    logits.log_softmax(-1)[..., 7].sum().backward()
    routers = [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
    assert len(routers) == len(layers)
    assert all(router.weight.grad.abs().max() > 0 for router in routers)


def test_a_model_without_known_routers_is_left_alone(make_model):
    assert prepare(make_model("qwen3")) is None


async def test_completions_have_the_experts_of_all_computed_tokens(make_model, make_policy):
    """Six requests share a prefix, which is computed once, and one continues in a second turn."""
    model = make_model("qwen3-moe")
    policy = make_policy(model, max_slots=4)
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, i, 20] for i in range(30, 36)]
    asked = SamplingParams(max_tokens=9, with_experts=True)
    sampled = await asyncio.gather(
        *(policy.generate(p, asked, f"s{i}") for i, p in enumerate(prompts))
    )
    again = [*prompts[0], *sampled[0].token_ids, 40, 41]
    later = await policy.generate(again, asked, "s0")
    plain = await policy.generate(prompts[0], SamplingParams(max_tokens=2), "s9")
    assert plain.experts is None
    for prompt, completion in [*zip(prompts, sampled, strict=True), (again, later)]:
        ids = torch.tensor([[*prompt, *completion.token_ids[:-1]]])
        recording = Recording()
        with torch.no_grad():
            outputs(model, ids, recording)
        expected = torch.stack([recording.experts[layer] for layer in range(3)], 1)
        assert completion.experts.dtype == np.uint8
        assert np.array_equal(np.sort(completion.experts), expected.sort().values)
