"""Adapters that PEFT made in other ways than ours: merged, they compute what PEFT computes."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rl.learner.model import load_model

peft = pytest.importorskip("peft")
LAYERS = ["q_proj", "v_proj"]
KINDS = {
    "plain": {},
    "DoRA": {"use_dora": True},
    "rank-stabilised": {"use_rslora": True},
    "ranks of its own": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 8}},
    "one layer": {"layers_to_transform": [1]},
    "biases": {"bias": "lora_only"},
    "a bias of its own": {"lora_bias": True},
    "a whole head": {"modules_to_save": ["lm_head"]},
    "a whole embedding": {"modules_to_save": ["embed_tokens"]},
    "both whole": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "tokens": {"trainable_token_indices": [1, 5]},
    "the head": {"target_modules": [*LAYERS, "lm_head"]},
    "the embedding": {"target_modules": [*LAYERS, "embed_tokens"]},
}
IDS = torch.arange(20)[None]


def model_of(tied, bias=True):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=40,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                tie_word_embeddings=tied,
                attention_bias=bias,
            )
        ).eval()


def adapter(folder, base, **settings):
    """A moved adapter's folder, whose base is ``folder/base``; returns its logits."""
    base.save_pretrained(folder / "base")
    config = peft.LoraConfig(r=4, task_type="CAUSAL_LM", **({"target_modules": LAYERS} | settings))
    drawn = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        model = peft.get_peft_model(copy.deepcopy(base), config).eval()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=drawn))
        model.save_pretrained(folder / "adapter")
        path = folder / "adapter" / "adapter_config.json"
        written = json.loads(path.read_text()) | {"base_model_name_or_path": str(folder / "base")}
        path.write_text(json.dumps(written))
        return model(IDS).logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_computes_what_peft_does(tmp_path, kind, tied):
    base = model_of(tied)
    expected = adapter(tmp_path, base, **KINDS[kind])
    merged = load_model(tmp_path / "adapter")
    merged.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert (base(IDS).logits - expected).abs().max() > 0.01, "the adapter has an effect"
        for model in (merged, again):
            assert (model(IDS).logits - expected).abs().max() < 1e-5


def test_a_bias_that_the_base_lacks_is_one_line(tmp_path):
    adapter(tmp_path, model_of(False, bias=False), lora_bias=True)
    with pytest.raises(ValueError, match=r"adapter that cannot be used \(.* has no bias\.\)$"):
        load_model(tmp_path / "adapter")


def test_the_adapter_of_another_model_is_refused(tmp_path):
    adapter(tmp_path, model_of(False))
    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )
    other.save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"adapter of another model: it differs by .*layers\.1\."):
        load_model(tmp_path / "adapter")
