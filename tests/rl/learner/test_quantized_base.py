"""A base model whose linear layers have 4 or 8 bits, under an adapter."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from rl.credit.algorithms import ALGORITHMS
from rl.learner.lora import add_adapter, trained_state
from rl.learner.memory.quantization import (
    QuantizedLinear,
    num_weights,
    quantize_linear_layers,
    round_linear_layers,
)
from rl.learner.model import load_model, score_tokens
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.settings.lora import LoraConfig

RANK = LoraConfig(rank=4)
FAST = OptimizerConfig(lr=1e-2)
IDS = list(range(2, 22))


def test_settings_that_contradict_it_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"base_bits \(5\) must be 0, 4 or 8"):
        LoraConfig(rank=4, base_bits=5)
    with pytest.raises(ValueError, match=r"base_bits \(4\) must be 0 with rank=0: .* give rank=8"):
        LoraConfig(base_bits=4)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"base_bits \(8\) needs bitsandbytes: pip install"):
        LoraConfig(rank=4, base_bits=8)


def quantized(model, bits=4):
    pytest.importorskip("bitsandbytes")
    quantize_linear_layers(model, bits, "cpu")
    return model


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, QuantizedLinear)]


def in_full_precision(model):
    """The same model with plain layers that hold the dequantised weights."""
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, QuantizedLinear):
            layer = nn.Linear(module.in_features, module.out_features, bias=False)
            layer.weight = nn.Parameter(module.dequantized(plain.dtype))
            layer.bias = module.bias
            plain.set_submodule(name, layer)
    return plain


@pytest.mark.parametrize(("bits", "error"), [(4, 0.152), (8, 0.0075)])
def test_weights_are_within_half_a_step_of_the_loaded_ones(make_model, bits, error):
    """The widest step is 1 - 0.6962 of a block's maximum for NF4, and 0.9 / 64 for 8 bits."""
    model = make_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    quantized(model, bits)
    names = [n for n, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    assert len(names) == 7 * 2  # seven linear layers in two decoder layers, not the head
    for name in names:
        exact = before[f"{name}.weight"]
        found = model.get_submodule(name).dequantized(torch.float32)
        blocks = zip(exact.flatten().split(64), found.flatten().split(64), strict=True)
        for a, b in blocks:
            assert 0 < (a - b).abs().max() <= error * a.abs().max()
    for name in before:
        if name.removesuffix(".weight") not in names:
            assert torch.equal(model.state_dict()[name], before[name])


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_and_number_of_the_weights(make_model, bits):
    model = make_model()
    count = num_weights(model)
    assert count == sum(p.numel() for p in model.parameters())
    quantized(model, bits)
    assert num_weights(model) == count
    for layer in layers_of(model):
        size = layer.in_features * layer.out_features
        table = 256 * 4 if bits == 8 else 0
        # A float32 scale for every 64 weights.
        assert (
            sum(p.nbytes for p in layer.stored()) == size * bits // 8 + -(-size // 64) * 4 + table
        )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("checkpointing", ["off", "on"])
def test_the_adapters_gradient_is_that_over_the_dequantised_base(
    make_model, groups, bits, checkpointing
):
    pytest.importorskip("peft")
    model = quantized(make_model(), bits)
    plain = in_full_precision(model)
    moved = []
    for each in (model, plain):
        add_adapter(each, RANK, "somewhere", 0)
        gradients = gradients_of(each, groups, checkpointing)
        assert all(gradient.norm() > 0 for n, gradient in gradients.items() if "lora_B" in n)
        moved.append(gradients)
    for name, exact in moved[1].items():
        assert (moved[0][name] - exact).norm() <= 1e-5 * exact.norm()


def gradients_of(model, groups, checkpointing):
    memory = MemoryConfig(activation_checkpointing=checkpointing)
    updater = Updater(model, ALGORITHMS["grpo"], FAST, memory=memory)
    found = {}
    step = updater.optimizer.step

    def keep_and_step():
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
        step()

    updater.optimizer.step = keep_and_step
    updater.update(groups)
    return found


def test_no_weights_in_full_precision_are_kept_for_the_backward_pass(make_model):
    layer = layers_of(quantized(make_model()))[0]
    row = torch.randn(1, layer.in_features, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.nbytes) or x, lambda x: x
    ):
        product = layer(row)
    assert sum(kept) == 0
    product.sum().backward()
    assert row.grad.norm() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_five_updates_train_the_adapter_alone(make_model, groups, dtype):
    pytest.importorskip("peft")
    model = quantized(make_model(dtype=dtype))
    add_adapter(model, RANK, "somewhere", 0)
    assert {w.dtype for w in trained_state(model).values()} == {torch.float32}
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    before = {n: w.clone() for n, w in trained_state(model).items()}
    learner = Updater(model, ALGORITHMS["ppo"], FAST)
    for _ in range(5):
        learner.update(groups)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, frozen[name])
    assert all(not torch.equal(w, before[n]) for n, w in trained_state(model).items())


def test_a_cast_of_the_model_keeps_the_weights(make_model):
    model = quantized(make_model(), 8)
    before = [layer.dequantized(torch.float32) for layer in layers_of(model)]
    model.to(dtype=torch.bfloat16)
    after = [layer.dequantized(torch.float32) for layer in layers_of(model)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rounded_model_has_the_scores_of_the_quantised_one(make_model, tmp_path, bits, dtype):
    """After a file as well, from which a server loads the model."""
    pytest.importorskip("bitsandbytes")
    base = make_model(dtype=dtype)
    rounded = copy.deepcopy(base)
    round_linear_layers(rounded, bits, "cpu")
    rounded.save_pretrained(tmp_path)
    rounded = load_model(tmp_path, dtype=dtype)
    exact, quantised = score_tokens(base, IDS, 1.0), score_tokens(quantized(base, bits), IDS, 1.0)
    assert score_tokens(rounded, IDS, 1.0) == quantised
    assert max(abs(a - b) for a, b in zip(exact, quantised, strict=True)) > 1e-3


SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
KINDS = {
    "jamba": {
        "intermediate_size": 64,
        "num_experts": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "longcat_flash": {
        **LATENT,
        "v_head_dim": 32,
        "head_dim": 32,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 64,
        "num_layers": 1,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_whose_weights_other_code_reads_keep_theirs(kind, bits):
    """LongCat-Flash's router and Jamba's time steps."""
    pytest.importorskip("bitsandbytes")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **(SIZES | KINDS[kind]))
        base = AutoModelForCausalLM.from_config(config).eval()
    rounded = copy.deepcopy(base)
    round_linear_layers(rounded, bits, "cpu")
    assert score_tokens(quantized(base, bits), IDS, 1.0) == score_tokens(rounded, IDS, 1.0)


def test_a_saved_adapter_is_added_to_the_base_in_full_precision(make_model, tmp_path):
    pytest.importorskip("peft")
    from rl.learner.checkpoint import save_checkpoint

    base = make_model()
    base.save_pretrained(tmp_path / "base")
    model = quantized(copy.deepcopy(base), 8)
    add_adapter(model, RANK, str(tmp_path / "base"), 0)
    exact = copy.deepcopy(base)
    add_adapter(exact, RANK, "somewhere", 0)
    drawn = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in trained_state(model).items():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=drawn))
            trained_state(exact)[name].copy_(tensor)
    save_checkpoint(tmp_path / "adapter", model)
    merged = load_model(tmp_path / "adapter")
    assert not layers_of(merged)
    found, expected = (torch.tensor(score_tokens(m, IDS, 1.0)) for m in (merged, exact))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
