"""Which layers the default adapter adapts, where PEFT or a model's own code stands in the way."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rl.learner.checkpoint import save_checkpoint
from rl.learner.lora import add_adapter, trained_state
from rl.learner.memory.linear import linear_layers, read_elsewhere
from rl.learner.model import load_model
from rl.settings.lora import LoraConfig

pytest.importorskip("peft")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
MLP = {"down_proj", "gate_proj", "up_proj"}
MAMBA = {"mamba_d_state": 8, "mamba_dt_rank": 4}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "head_dim": 16}
# Sizes of each kind of model, and the ends of the names that get no adapter.
KINDS = {
    "llama": ({}, set()),
    "mixtral": ({"num_local_experts": 4}, set()),
    "phimoe": ({"num_local_experts": 4}, {"router"}),
    "qwen3_moe": ({**EXPERTS, "num_experts": 4, "mlp_only_layers": [0]}, MLP),
    "glm4_moe": ({**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1}, MLP),
    "jamba": (
        {**MAMBA, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
        {"dt_proj"},
    ),
    "falcon_h1": (
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 2,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
        },
        {"out_proj"},
    ),
    "zamba2": (
        {
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "mamba_d_state": 8,
            "mamba_headdim": 16,
            "n_mamba_heads": 4,
            "num_mem_blocks": 1,
            "mamba_ngroups": 1,
        },
        {"out_proj"},
    ),
}
IDS = torch.arange(20)[None]


def saved(kind, folder):
    """The folder of a random model of this kind."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **(SIZES | KINDS[kind][0]))
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model):
    return model(IDS, use_cache=False).logits


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_adapts_every_layer_that_can_be_and_names_the_others(kind, tmp_path, caplog):
    base = saved(kind, tmp_path / "base")
    model, left_out = load_model(base), KINDS[kind][1]
    before, layers = logits(model), linear_layers(model)
    with caplog.at_level(logging.WARNING):
        add_adapter(model, LoraConfig(rank=4), str(base), 0)
    adapted = {name.removeprefix("base_model.model.") for name in trained_state(model)}
    ends = {name for name in layers if name.rpartition(".")[2] not in left_out}
    assert adapted == {f"{name}.lora_{ab}.weight" for name in ends for ab in "AB"}
    said = " ".join(record.message for record in caplog.records if record.name.startswith("rl."))
    count = sum(name.rpartition(".")[2] in left_out for name in layers)
    named = f"{count} layers ({', '.join(sorted(left_out))}) get no adapter: "
    assert named in said if left_out else said == ""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in trained_state(model).values():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=drawn))
    expected = logits(model)
    assert (expected - before).abs().max() > 0.1
    save_checkpoint(tmp_path / "adapter", model)
    assert (logits(load_model(tmp_path / "adapter")) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("jamba", "dt_proj", "JambaMambaMixer reads its weights"),
        ("phimoe", "router", "a PhimoeTopKRouter computes more than a product"),
        ("qwen3_moe", "gate_proj", "PEFT would adapt the mixture's experts of this name instead"),
    ],
)
def test_a_chosen_layer_that_cannot_be_adapted_is_one_line(kind, target, reason, tmp_path):
    model = load_model(saved(kind, tmp_path))
    with pytest.raises(ValueError, match=rf"^lora\.targets \({target}\) cannot .*{reason}; leave"):
        add_adapter(model, LoraConfig(rank=4, targets=(target,)), "base", 0)


def test_code_may_ask_for_a_type_without_reading_weights(tmp_path):
    model = load_model(saved("jamba", tmp_path))
    assert {name.rpartition(".")[2] for name in read_elsewhere(model)} == {"dt_proj"}
    assert not read_elsewhere(load_model(saved("llama", tmp_path)))
