"""Norms and gated layers with their own backward pass, against autograd's."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl.learner.memory.fused import fuse

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
}


def make(family, dtype=torch.float32):
    torch.manual_seed(0)
    config, kind = FAMILIES[family]
    model = kind(
        config(
            vocab_size=50,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            pad_token_id=None,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def pair(family, dtype=torch.float32):
    """A model as transformers computes it, and its fused copy."""
    plain = make(family, dtype)
    fused = copy.deepcopy(plain)
    fuse(fused)
    return plain, fused


def gradients(model):
    ids = torch.arange(120).view(3, 40) % 50
    logprobs = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    loss = -logprobs[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    parameters = list(model.parameters())
    return [loss, *torch.autograd.grad(loss, parameters)]


def error(found, expected):
    """The largest relative error of a tensor."""
    return max(
        float((a - b).norm().detach() / b.norm().detach())
        for a, b in zip(found, expected, strict=True)
    )


def saved_bytes(model):
    """Bytes of the distinct tensors that autograd keeps for the backward pass, without weights."""
    kept, weights = {}, {p.data_ptr() for p in model.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(input_ids=torch.arange(200)[None] % 50, use_cache=False).logits
        del output
    return sum(kept.values())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_forward_pass_gives_the_same_bits(family, dtype):
    plain, fused = pair(family, dtype)
    ids = torch.arange(120).view(3, 40) % 50
    assert torch.equal(fused(input_ids=ids).logits, plain(input_ids=ids).logits)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_gradients_are_autograd_s_up_to_rounding(family):
    plain, fused = pair(family)
    expected = gradients(plain)
    assert error(gradients(fused), expected) < 2e-6


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 3e-7), (torch.bfloat16, 6e-3), (torch.float16, 8e-4)]
)
def test_the_gradients_of_a_norm_are_as_exact_as_transformers(dtype, rounding):
    """Against the formula in float64."""
    plain, fused = (model.model.norm for model in pair("qwen3", dtype))
    x = torch.randn(50, 64).to(dtype) * torch.logspace(-2, 2, 50).to(dtype)[:, None]
    direction = torch.randn_like(x)
    inputs = [x.double().requires_grad_(), plain.weight.detach().double().requires_grad_()]
    mean = inputs[0].square().mean(-1, keepdim=True)
    exact = inputs[1] * inputs[0] / (mean + plain.variance_epsilon).sqrt()
    expected = torch.autograd.grad(exact, inputs, direction.double())
    errors = []
    for norm in (plain, fused):
        single = x.detach().requires_grad_()
        found = torch.autograd.grad(norm(single), [single, norm.weight], direction)
        errors.append(error([part.double() for part in found], expected))
    assert errors[1] < max(1.5 * errors[0], rounding)
    assert errors[1] < 2 * rounding


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_less_is_saved_for_the_backward_pass(family):
    """Neither the normed inputs of norms, nor the activated gates."""
    plain, fused = pair(family)
    normed = 5 * 64 + (2 * 6 * fused.config.head_dim if family == "qwen3" else 0)
    left_out = 200 * 4 * (normed + 2 * 96)
    assert saved_bytes(plain) - saved_bytes(fused) == left_out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gated_layer_gives_the_same_bits(dtype):
    plain, fused = (model.model.layers[0].mlp for model in pair("llama", dtype))
    x = torch.randn(2, 30, 64).to(dtype).requires_grad_()
    results = []
    for layer in (plain, fused):
        y = layer(x)
        results.append(
            [y, *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])]
        )
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_other_families_stay_as_they_are():
    plain, fused = pair("phi3")
    assert saved_bytes(fused) == saved_bytes(plain)


def test_a_copy_uses_its_own_weights():
    _, fused = pair("qwen3")
    copied = copy.deepcopy(fused)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    ids = torch.arange(9)[None]
    assert not copied(input_ids=ids).logits.any()
    assert fused(input_ids=ids).logits.any()


def test_a_frozen_norm_gets_no_gradient():
    _, fused = pair("qwen3")
    fused.model.norm.weight.requires_grad_(False)
    ids = torch.arange(9)[None]
    fused(input_ids=ids).logits.sum().backward()
    assert fused.model.norm.weight.grad is None
    assert fused.model.layers[0].input_layernorm.weight.grad is not None
