"""An adapter: it alone learns, the model beneath it never changes, and a file of it is enough."""

from __future__ import annotations

import copy
import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.learner.checkpoint import read_trained_state, save_checkpoint
from rl.learner.lora import (
    add_adapter,
    base_of,
    check_lora,
    is_adapted,
    load_trained_state,
    trained_state,
)
from rl.learner.model import load_model, score_tokens
from rl.learner.scoring import ScoringModel
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.settings.lora import LoraConfig

pytest.importorskip("peft")
RANK = LoraConfig(rank=4)
FAST = OptimizerConfig(lr=1e-2, warmup_steps=0)
GRPO, PPO = ALGORITHMS["grpo"], ALGORITHMS["ppo"]
IDS = list(range(2, 22))


def adapted(model, settings=RANK, base="somewhere", seed=0, moved=0.0):
    add_adapter(model, settings, base, seed)
    drawn = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in trained_state(model).values():
            tensor.add_(moved * torch.randn(tensor.shape, generator=drawn))
    return model


def base_weights(model):
    state = model.state_dict()
    return {n.replace(".base_layer", ""): w.clone() for n, w in state.items() if ".lora_" not in n}


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS]), use_cache=False).logits


def farthest(first, second):
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def test_an_adapter_changes_nothing_at_first_and_is_drawn_from_its_seed_alone(make_model):
    models = [adapted(make_model(), seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(logits(models[0]), logits(make_model()))
    first, again, other = (trained_state(model) for model in models)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert len(first) == 2 * 7 * 2  # A and B of seven linear layers in two decoder layers
    assert not any("lm_head" in name or "embed" in name for name in first)


def test_torchs_global_generator_is_unchanged(make_model):
    model = make_model()
    before = torch.get_rng_state()
    add_adapter(model, RANK, "somewhere", seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_update_is_scaled_by_alpha_over_rank(make_model):
    plain = logits(make_model())
    changes = {
        alpha: logits(adapted(make_model(), LoraConfig(rank=4, alpha=alpha), moved=1e-3)) - plain
        for alpha in (0, 4, 8)
    }
    torch.testing.assert_close(changes[0], changes[8], rtol=0, atol=0)
    assert changes[8].norm() / changes[4].norm() == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("row", [GRPO, PPO], ids=["grpo", "ppo"])
def test_only_the_adapter_and_the_value_head_are_trained(make_model, groups, row):
    model = adapted(make_model())
    before, trained = base_weights(model), {n: w.clone() for n, w in trained_state(model).items()}
    learner = Updater(model, row, FAST)
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(names) == len(trained)
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    heads = 2 if row.uses_values else 0
    assert len(learner.optimizer._parameters) == len(trained) + heads
    for _ in range(3):
        learner.update(groups)
    torch.testing.assert_close(base_weights(model), before, rtol=0, atol=0)
    moved = {n for n, w in trained_state(model).items() if not torch.equal(w, trained[n])}
    assert moved == set(trained)


def test_the_adapter_is_in_float32_under_a_model_of_bfloat16(make_model, groups):
    model = adapted(make_model(dtype=torch.bfloat16))
    assert {w.dtype for w in trained_state(model).values()} == {torch.float32}
    assert model.lm_head.weight.dtype == torch.bfloat16
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == len(trained_state(model))
    learner = Updater(model, GRPO, FAST)
    assert learner.optimizer.state_dict()["copies"] == {}
    learner.update(groups)
    assert is_adapted(model)


def test_the_reference_is_the_base_model_without_a_copy(make_model, groups):
    with_kl = GRPO.changed({"kl.coef": 0.1})
    model = adapted(make_model(), moved=0.05)
    learner = Updater(model, with_kl, FAST)
    assert learner.reference.model is model
    assert learner.state_dict()["reference"] is None
    batch = Batch.from_groups(groups)
    expected, _ = ScoringModel(make_model(), packing=True).score_batch(batch, 4096)
    learner.update(groups)
    scored, _ = learner.reference.score_batch(batch, 4096)
    assert torch.equal(scored, expected)
    ours, _ = learner.model.score_batch(batch, 4096)
    assert not torch.equal(ours, expected)
    assert all(w.requires_grad for n, w in model.named_parameters() if ".lora_" in n)
    # One that is renewed is a copy, with the adapter as it was then.
    renewed = Updater(model, with_kl.changed({"kl.ref_every": 1}), FAST)
    renewed.update(groups)
    scored, _ = renewed.reference.score_batch(batch, 4096)
    ours, _ = renewed.model.score_batch(batch, 4096)
    assert renewed.reference.model is not model
    assert torch.equal(scored, ours)


def test_the_divergence_is_that_from_a_copy_of_the_model(make_model, groups):
    losses = {}
    for ref_every in (0, 1000):  # 1000: a copy, which is never renewed here
        model = adapted(make_model())
        learner = Updater(model, GRPO.changed({"kl.coef": 0.1, "kl.ref_every": ref_every}), FAST)
        losses[ref_every] = [learner.update(groups)["loss"] for _ in range(3)]
    assert losses[0] == losses[1000]
    assert losses[0][0] != losses[0][-1]


def test_a_learner_resumes_bit_for_bit(make_model, groups, tmp_path):
    model = adapted(make_model())
    whole = Updater(model, PPO, FAST).seeded(1)
    whole.update(groups)
    save_checkpoint(tmp_path / "saved", model)
    state = copy.deepcopy(whole.state_dict())
    whole.update(groups)
    other = adapted(make_model(), seed=9)
    resumed = Updater(other, PPO, FAST).seeded(2)
    resumed.load_state_dict(state)
    load_trained_state(other, read_trained_state(tmp_path / "saved", other, other.dtype))
    resumed.update(groups)
    torch.testing.assert_close(trained_state(other), trained_state(model), rtol=0, atol=0)


@pytest.fixture
def saved(make_model, tmp_path):
    """A base model's folder, an adapted model and its folder."""
    base = tmp_path / "base"
    make_model().save_pretrained(base)
    model = adapted(make_model(), base=str(base), moved=0.05)
    save_checkpoint(tmp_path / "adapter", model)
    return base, model, tmp_path / "adapter"


def test_a_checkpoint_is_read_by_transformers_and_merged_by_us(saved):
    base, model, folder = saved
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in folder.iterdir()
    }
    assert not (folder / "model.safetensors").exists()
    assert base_of(str(folder)) == str(base)
    expected = score_tokens(model, IDS, 1.0)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert farthest(score_tokens(theirs, IDS, 1.0), expected) == 0
    merged = load_model(folder)
    assert not is_adapted(merged)
    assert set(merged.state_dict()) == set(load_model(base).state_dict())
    assert farthest(score_tokens(merged, IDS, 1.0), expected) < 1e-5
    assert farthest(score_tokens(load_model(base), IDS, 1.0), expected) > 0.01


def test_a_base_model_is_named_by_its_whole_path(make_model, tmp_path, monkeypatch):
    make_model().save_pretrained(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path / "adapter", adapted(make_model(), base="base"))
    assert base_of(str(tmp_path / "adapter")) == str(tmp_path / "base")
    save_checkpoint(tmp_path / "other", adapted(make_model(), base="Qwen/Qwen3-0.6B"))
    assert base_of(str(tmp_path / "other")) == "Qwen/Qwen3-0.6B"


# ---- mistakes --------------------------------------------------------------------------------


def test_targets_are_linear_layers_of_the_decoder(make_model):
    model = adapted(make_model(), LoraConfig(rank=2, targets=("q_proj", "v_proj")))
    assert len(trained_state(model)) == 2 * 2 * 2
    for target in ("lm_head", "qproj"):
        with pytest.raises(ValueError, match=rf"lora\.targets \({target}\) must be .*: down_proj"):
            adapted(make_model(), LoraConfig(rank=2, targets=(target,)))


def test_a_model_without_linear_layers_is_refused():
    config = GPT2Config(vocab_size=23, n_positions=32, n_embd=8, n_layer=1, n_head=1)
    with pytest.raises(ValueError, match=r"lora\.rank \(4\) must be 0: GPT2LMHeadModel has no lin"):
        adapted(GPT2LMHeadModel(config))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rank": -1}, r"rank \(-1\) must be >= 0"),
        ({"alpha": 8}, r"alpha \(8\) does nothing with rank=0"),
        ({"targets": ("q_proj",)}, r"targets \(q_proj\) does nothing with rank=0"),
    ],
)
def test_invalid_settings_are_refused(settings, expected):
    with pytest.raises(ValueError, match=expected):
        LoraConfig(**settings)


def test_without_peft_the_fix_is_named(saved, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"lora\.rank \(4\) needs PEFT: pip install 'turnwise\[l"):
        check_lora(RANK, "tiny")
    check_lora(LoraConfig(), "tiny")
    with pytest.raises(ValueError, match=r"is an adapter, which needs PEFT: pip install"):
        load_model(saved[2])


def test_a_missing_base_model_is_reported(saved):
    base, _, folder = saved
    base.rename(base.with_name("elsewhere"))
    message = (
        rf"model \({folder}\) is an adapter, whose base model \({base}\) is neither a folder nor"
    )
    with pytest.raises(ValueError, match=message):
        load_model(folder)


def test_an_adapter_upon_an_adapter_is_refused_with_the_fix(saved):
    with pytest.raises(ValueError, match=r"is an adapter, .* merge it first \(python -m rl\.merge"):
        check_lora(RANK, str(saved[2]))


def test_an_adapter_of_another_model_is_refused(saved, make_model):
    _, model, folder = saved
    other = adapted(make_model(), LoraConfig(rank=2))
    with pytest.raises(ValueError, match="is the adapter of another model: it differs by base_mo"):
        read_trained_state(folder, other, other.dtype)
    path = folder / "adapter_model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    weights.popitem()
    save_file(weights, path)
    with pytest.raises(ValueError, match=r"is an adapter that cannot be used .* another model"):
        load_model(folder)
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        read_trained_state(folder, model, model.dtype)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4}))
    with pytest.raises(ValueError, match="names no base model"):
        load_model(folder)
