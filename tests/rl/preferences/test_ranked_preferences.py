"""Preferences learned by several ranks: the metrics, the rewards and the files of one process."""

from __future__ import annotations

import itertools
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import rl.dpo
import rl.reward_model
from rl.preferences.learner import RankedPreferences
from rl.preferences.reward_model import RewardModel
from rl.run.folder import read_jsonl

pytestmark = pytest.mark.slow

# One comparison in the last step, of which one rank computes nothing that counts, and several
# forward passes in the others.
SETTINGS = {"threads": 1, "batch_size": 7, "micro_batch_tokens": 40, "optimizer.lr": 5e-3}
COMMANDS = {
    "dpo": (rl.dpo.main, {}),
    "dpo-by-turn": (rl.dpo.main, {"reduction": "turn-mean", "packing": "false"}),
    "reward": (rl.reward_model.main, {}),
    "process": (rl.reward_model.main, {"process": "true"}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Files of preferences, where the last shown digit is preferred, and of labelled steps."""
    folder, prompts = tmp_path_factory.mktemp("rows"), ["012"[i % 3] * (i + 1) for i in range(9)]
    pairs, steps = [], []
    for prompt in prompts:
        scores = [c == prompt[-1] for c in "012"]
        pairs.append({"prompt": prompt, "completions": list("012"), "scores": scores})
        for first, second in itertools.product("02", repeat=2):
            labels = [{"0": 0.75, "2": 1}[step] for step in (first, second)]
            steps.append({"prompt": prompt, "completions": [first, second], "labels": labels})
    for name, found in (("pairs", pairs), ("steps", steps)):
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def words(name, folder, rows, out, **more):
    data = rows / ("steps.jsonl" if name == "process" else "pairs.jsonl")
    settings = {"model": folder, "data": data, "out": out, **SETTINGS, **COMMANDS[name][1], **more}
    return [f"{key}={value}" for key, value in settings.items()]


def trained(name, model, rows, out, capfd, **more):
    assert COMMANDS[name][0](words(name, model, rows, out, **more)) == 0
    result = json.loads(capfd.readouterr().out)
    # Ranks write whole tensors in the type of the model, as one process does.
    weights = load_file(out / "checkpoints" / "last" / "model.safetensors")
    return result, read_jsonl(out / "metrics.jsonl"), weights


@pytest.fixture(scope="module")
def alone():
    return {}


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        *((2, name) for name in COMMANDS),
        pytest.param(3, "dpo", marks=pytest.mark.nightly),
        (3, "reward"),
    ],
)
def test_ranks_learn_as_one_process_does(ranks, name, toy_model, rows, alone, tmp_path, capfd):
    if name not in alone:
        alone[name] = trained(name, toy_model, rows, tmp_path / "one", capfd)
    result, steps, weights = alone[name]
    assert len(steps) >= 2
    assert max(step["grad_norm"] for step in steps) > 0.01
    out = tmp_path / "ranks"
    found, made, saved = trained(name, toy_model, rows, out, capfd, **{"learner.ranks": ranks})
    assert len(made) == len(steps)
    for mine, theirs in zip(made, steps, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    apart = ("seconds", "model")
    numbers = {key: value for key, value in result.items() if key not in apart}
    assert {k: v for k, v in found.items() if k not in apart} == pytest.approx(
        numbers, rel=1e-5, abs=1e-5
    )
    assert saved.keys() == weights.keys()
    for key, x in weights.items():
        torch.testing.assert_close(saved[key], x, atol=1e-5, rtol=1e-5)
    if name.startswith("dpo"):
        AutoModelForCausalLM.from_pretrained(found["model"])
    else:
        assert RewardModel.load(found["model"]).of_steps == (name == "process")


def test_a_bfloat16_model_is_saved_as_one_process_saves_it(toy_model, rows, tmp_path, capfd):
    kept = {}
    for ranks in (1, 2):
        more = {"dtype": "bfloat16", "steps": 1, "learner.ranks": ranks}
        out = tmp_path / str(ranks)
        result, _, weights = trained("reward", toy_model, rows, out, capfd, **more)
        model = AutoModelForSequenceClassification.from_pretrained(result["model"])
        kept[ranks] = model.dtype, {name: x.dtype for name, x in weights.items()}
    assert kept[1] == kept[2]
    assert kept[1][0] == torch.bfloat16


def test_a_lost_rank_ends_the_command_in_one_line(toy_model, rows, tmp_path, capfd, monkeypatch):
    update = RankedPreferences.update

    def kill(learner, part):
        os.kill(learner._processes.pids[1], signal.SIGKILL)
        return update(learner, part)

    monkeypatch.setattr(RankedPreferences, "update", kill)
    out = tmp_path / "lost"
    assert rl.dpo.main(words("dpo", toy_model, rows, out, **{"learner.ranks": 2})) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line == "error: rank 1 of the learner ended with exit code -9"
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"learner": "elsewhere"}, "unknown learner 'elsewhere'"),
        ({"cluster": "ray"}, "cluster (ray) must be local with learner.ranks=1"),
        ({"learner.ranks": 2, "model": "nowhere"}, "model (nowhere) is neither a folder nor"),
    ],
)
def test_a_users_mistake_is_one_line(more, line, toy_model, rows, tmp_path, capfd):
    assert rl.dpo.main(words("dpo", toy_model, rows, tmp_path / "out", **more)) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"error: {line}")
