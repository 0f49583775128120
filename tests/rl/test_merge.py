"""Weights of models, averaged."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import rl.merge
from rl.data.conversations import Conversation, Exchange
from rl.learner.checkpoint import save_checkpoint
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe


def weights(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders: two that fit, one of another width, one with another tokenizer."""
    home = tmp_path_factory.mktemp("models")
    texts = {"": "a b a b", "other": "c d c d"}
    tokenizers = {
        name: train_tokenizer([Conversation((Exchange(text, text),))], 265)
        for name, text in texts.items()
    }
    for seed, (name, width, tokenizer) in enumerate(
        [("a", 32, ""), ("b", 32, ""), ("wide", 64, ""), ("foreign", 32, "other")]
    ):
        recipe = TinyRecipe(
            hidden_size=width, intermediate_size=32, num_layers=1, num_heads=2, context_length=32
        )
        model = new_model(tokenizers[tokenizer], recipe, seed=seed)
        save_checkpoint(home / name, model, tokenizers[tokenizer])
    return home


def test_the_average_is_the_weights_average(models, tmp_path, capsys):
    out = tmp_path / "merged"
    words = [f"models={models}/a,{models}/b", "weights=0.75,0.25", f"out={out}"]
    assert rl.merge.main(words) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["model"] == str(out / "checkpoints" / "last")
    a, b, merged = weights(models / "a"), weights(models / "b"), weights(reported["model"])
    assert merged.keys() == a.keys()
    for name, values in merged.items():
        expected = 0.75 * a[name].double() + 0.25 * b[name].double()
        torch.testing.assert_close(values, expected.float(), rtol=0, atol=0)
    assert any((a[name] != b[name]).any() for name in a)


def test_without_weights_all_count_the_same_and_nothing_is_overwritten(models, tmp_path, capsys):
    folders = f"models={models}/a,{models}/b,{models}/a"
    assert rl.merge.main([folders, f"out={tmp_path}/m"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["weights"] == [1 / 3] * 3
    a, b, merged = weights(models / "a"), weights(models / "b"), weights(reported["model"])
    for name, values in merged.items():
        torch.testing.assert_close(values, (2 * a[name] + b[name]) / 3, rtol=1e-6, atol=1e-7)
    assert rl.merge.main([folders, f"out={tmp_path}/m"]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: out ({tmp_path}/m) holds checkpoints/last already"
    )


def test_the_first_models_type_is_the_results(models, tmp_path, capsys):
    half = AutoModelForCausalLM.from_pretrained(models / "a", dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "half" / name).write_bytes((models / "a" / name).read_bytes())
    assert rl.merge.main([f"models={tmp_path}/half,{models}/b", f"out={tmp_path}/m"]) == 0
    reported = json.loads(capsys.readouterr().out)
    merged = AutoModelForCausalLM.from_pretrained(reported["model"], dtype="auto")
    assert merged.dtype == torch.bfloat16
    a, b = half.state_dict(), weights(models / "b")
    for name, values in merged.state_dict().items():
        expected = ((a[name].double() + b[name].double()) / 2).float().bfloat16()
        torch.testing.assert_close(values, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["models=a"], "models (a) must be two or more"),
        (["models=a,b", "weights=1"], "weights (1.0) must be as many as models, 2"),
        (["models=a,b", "weights=0.5,0.6"], "weights (0.5, 0.6) must add up to 1"),
        (["models=a,b", "weights=nan,0.5"], "weights (nan, 0.5) must add up to 1"),
        (["models={home}/a,{home}/no"], "model ({home}/no) "),
        (
            ["models={home}/a,{home}/wide"],
            "models ({home}/a, {home}/wide) differ in architecture: model.embed_tokens.weight is "
            "(263, 32) in the first and (263, 64) in the other",
        ),
        (
            ["models={home}/a,{home}/foreign"],
            "models ({home}/a, {home}/foreign) have different tokenizers",
        ),
    ],
)
def test_models_that_cannot_be_averaged_are_one_line(
    models, tmp_path, monkeypatch, capsys, words, line
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    filled = [word.format(home=models) for word in words]
    assert rl.merge.main([*filled, f"out={tmp_path}/m"]) == 1
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.splitlines()[-1].startswith(f"error: {line.format(home=models)}")
