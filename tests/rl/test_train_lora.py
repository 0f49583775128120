"""Runs that train an adapter: what they save, and how they go on, are tested, replayed, merged."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import rl.eval
import rl.merge
import rl.replay
import rl.sft
from rl.learner.lora import add_adapter, trained_state
from rl.learner.model import load_model, score_tokens
from rl.run.folder import read_jsonl
from rl.settings.lora import LoraConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import ADAPTER_LR, LARGE_LR, TINY_LR, TrainConfig
from rl.train import main

pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("without_charts")
LORA = {"lora__rank": 4, "env__max_turns": 2, "optimizer__lr": 1e-2}
EXACT = LORA | {"deterministic": "true"}
IDS = list(range(5, 40))


def adapter(out, checkpoint="step-000004"):
    file = out / "checkpoints" / checkpoint / "adapter_model.safetensors"
    # What is loaded is a view of the file, which a test may overwrite.
    return {name: weight.clone() for name, weight in load_file(file).items()}


def assert_equal(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_resumed_run_and_a_replay_make_the_same_adapter(words, tmp_path, toy_model, capfd):
    settings = EXACT | {"algo": "ppo", "algo__minibatches": 2, "algo__kl__coef": 0.01}
    before = (toy_model / "model.safetensors").read_bytes()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(words(whole, **settings)) == 0
    assert main(words(stopped, **settings, steps=2)) == 0
    assert main(words(stopped, **settings, resume="auto")) == 0
    assert_equal(adapter(stopped), adapter(whole))
    assert any(weight.abs().max() > 0 for n, weight in adapter(whole).items() if "lora_B" in n)
    assert (toy_model / "model.safetensors").read_bytes() == before
    facts = json.loads((whole / "versions.json").read_text())
    assert facts["num_trained"] == sum(weight.numel() for weight in adapter(whole).values())
    capfd.readouterr()
    assert rl.replay.main([f"run={whole}"]) == 0
    assert json.loads(capfd.readouterr().out)["equal"] is True


@pytest.mark.quick
def test_the_seed_draws_the_adapter(words, tmp_path, toy_model):
    out = tmp_path / "run"
    assert main(words(out, **LORA | {"optimizer__lr": 1e-12}, steps=1, seed=3)) == 0
    drawn = {}
    for seed in (0, 3):
        model = load_model(toy_model)
        add_adapter(model, LoraConfig(rank=4), str(toy_model), seed)
        drawn[seed] = {n: w for n, w in trained_state(model).items() if "lora_A" in n}
    for name, expected in drawn[3].items():
        torch.testing.assert_close(adapter(out, "step-000001")[name], expected, rtol=0, atol=1e-9)
        assert not torch.allclose(expected, drawn[0][name])


def test_rollouts_beside_learning_sample_from_the_adapter(words, tmp_path):
    """A policy with weights of its own: its log-probabilities are the learner's."""
    out = tmp_path / "run"
    assert main(words(out, **LORA, staleness=1, steps=6)) == 0
    steps = [record for record in read_jsonl(out / "metrics.jsonl") if "reward" in record]
    assert len(steps) == 6
    assert any(record["staleness/mean"] > 0 for record in steps)
    assert adapter(out, "step-000006")


def test_the_best_adapter_is_tested_evaluated_and_merged(words, tmp_path, toy_model, capfd):
    out = tmp_path / "run"
    assert main(words(out, **EXACT, eval__every=1, eval__test_tasks=12)) == 0
    assert any("test/success" in record for record in read_jsonl(out / "metrics.jsonl"))
    best, merged = out / "checkpoints" / "best", tmp_path / "merged" / "checkpoints" / "last"
    assert rl.merge.main([f"models={best}", f"out={tmp_path}/merged"]) == 0
    played = []
    for model in (best, merged):
        capfd.readouterr()
        asked = ["env=toy-copy", f"model={model}", "tasks=24", "sampling.max_tokens=3"]
        assert rl.eval.main([*asked, "env.max_turns=2", "deterministic=true", "--json"]) == 0
        played.append(json.loads(capfd.readouterr().out)["success"])
    assert played[0] == played[1] > 0
    assert (tmp_path / "merged" / "checkpoints" / "last" / "tokenizer.json").is_file()
    ours, theirs = load_model(merged), AutoModelForCausalLM.from_pretrained(best)
    pairs = zip(score_tokens(ours, IDS, 1.0), score_tokens(theirs, IDS, 1.0), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5


def test_supervised_learning_of_an_adapter(tmp_path, toy_model):
    asked = ["env=toy-copy", f"model={toy_model}", "lora.rank=4", "steps=5", "test_tasks=0"]
    assert rl.sft.main([*asked, "demonstrations=64", f"out={tmp_path}/sft"]) == 0
    saved = adapter(tmp_path / "sft", "last")
    assert all(weight.abs().max() > 0 for weight in saved.values())


def test_a_damaged_adapter_is_set_aside(words, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert main(words(out, **EXACT, save_every=1)) == 0
    (out / "checkpoints" / "step-000004" / "adapter_model.safetensors").write_bytes(b"torn")
    assert main(words(out, **EXACT, save_every=1, steps=5, resume="auto")) == 0
    assert main(words(whole, **EXACT, save_every=1, steps=5)) == 0
    assert_equal(adapter(out, "step-000005"), adapter(whole, "step-000005"))
    assert (out / "checkpoints" / "unusable-step-000004").is_dir()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lora__alpha": 8}, "error: lora.alpha (8) does nothing with rank=0: give rank=8, say"),
        (
            {"lora__rank": 4, "lora__targets": "q_proj,qproj"},
            "error: lora.targets (qproj) must be among the linear layers: down_proj, gate_proj, "
            "k_proj, o_proj, q_proj, up_proj, v_proj",
        ),
        (
            {"lora__rank": 1000, "policy": "vllm-server"},
            "error: lora.rank (1000) must be at most 512 with vLLM",
        ),
    ],
)
def test_mistakes_are_one_line(words, tmp_path, capfd, settings, expected):
    assert main(words(tmp_path / "run", **settings)) != 0
    assert capfd.readouterr().err.splitlines()[-1] == expected


def test_an_adapter_over_a_quantised_base_is_trained(words, tmp_path, toy_model):
    pytest.importorskip("bitsandbytes")
    out = tmp_path / "run"
    settings = LORA | {"lora__base_bits": 4, "staleness": 1, "steps": 2}
    assert main(words(out, **settings)) == 0
    facts = json.loads((out / "versions.json").read_text())
    weights = load_file(toy_model / "model.safetensors")
    trained = facts["num_trained"]
    assert facts["num_parameters"] == sum(w.numel() for w in weights.values()) + trained


def test_a_quantised_base_is_refused_with_running_servers(words, tmp_path, capfd):
    pytest.importorskip("bitsandbytes")
    settings = {"lora__rank": 4, "lora__base_bits": 4, "policy": "vllm-server"}
    settings |= {"policy__url": "http://127.0.0.1:9"}
    assert main(words(tmp_path / "run", **settings)) != 0
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: lora.base_bits (4) must be 0 with policy.url: ")
    assert line.endswith("a server that the run starts has it")


def test_a_default_rate_for_a_model_by_path_is_named(tmp_path):
    def notice(**settings):
        return TrainConfig(**{"env": "math", "model": str(tmp_path)} | settings).lr_notice

    weights = tmp_path / "model.safetensors"
    assert notice() == ""
    # The size of a pretrained model, without its content.
    with weights.open("wb") as file:
        file.truncate(100_000_000)
    assert notice() == ""
    weights.write_bytes(b"x" * 1000)
    assert notice().startswith("optimizer.lr is 1e-06, the default for a model by path: ")
    assert notice().endswith("such as optimizer.lr=0.0004")
    assert notice(**{"lora.rank": 4}).startswith("optimizer.lr is 1e-05, ")
    assert notice(**{"optimizer.lr": 1e-6}) == ""
    assert notice(model="tiny") == notice(model="Qwen/Qwen3-0.6B") == ""
    (tmp_path / "adapter_config.json").write_text("{}")
    assert notice() == ""


def test_the_learning_rate_of_an_adapter_is_ten_times_higher():
    def rate(*more):
        return parse(
            TrainConfig, ["env=toy-copy", *more], command="x", presets={}
        ).effective_optimizer.lr

    assert rate() == TINY_LR
    assert rate("lora.rank=4") == TINY_LR * ADAPTER_LR
    assert rate("lora.rank=4", "model=other") == LARGE_LR * ADAPTER_LR
    assert rate("lora.rank=4", "optimizer.lr=3e-5") == 3e-5
