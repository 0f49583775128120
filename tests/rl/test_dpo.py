"""``rl.dpo`` from the command line to a policy that writes preferred answers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rl.dpo
from agents.renderer import Renderer


@pytest.fixture
def preferences(tmp_path):
    """Whatever was shown, "2" is preferred to "0" and "1"."""
    path = tmp_path / "preferences.jsonl"
    rows = [
        {"prompt": f"{a}{b}", "chosen": "2", "rejected": other}
        for a, b, other in itertools.product("012", "012", "01")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def probability_of_two(folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    renderer = Renderer(AutoTokenizer.from_pretrained(folder))
    ids = renderer.start([{"role": "user", "content": "1"}])
    with torch.no_grad():
        probabilities = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
    return probabilities[renderer.splice("2")[0]].item()


@pytest.mark.quick
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_policy_learns_the_preferences(toy_model, preferences, tmp_path, capfd, reduction):
    words = [f"model={toy_model}", f"data={preferences}", f"out={tmp_path}/dpo", "steps=20"]
    words += ["optimizer.lr=3e-3", "batch_size=8", "held_out=0.2", f"reduction={reduction}"]
    assert rl.dpo.main(words) == 0
    reported = json.loads(capfd.readouterr().out)
    # Against itself, log 2 whatever the data.
    assert reported["first_loss"] == pytest.approx(0.6931, abs=1e-4)
    folder = Path(reported["model"]).parents[1]
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps] == list(range(1, reported["steps"] + 1))
    assert (steps[0]["loss"], steps[-1]["loss"]) == (reported["first_loss"], reported["last_loss"])
    assert "accuracy" in steps[0]
    assert json.loads((folder / "config.json").read_text())["held_out"] > 0
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert reported["last_loss"] < 0.5
    assert (reported["accuracy"], reported["held_out_pairs"]) == (1.0, 4)
    assert probability_of_two(toy_model) < 0.4 < 0.6 < probability_of_two(reported["model"])
    # The same line again would write over what was learned.
    assert rl.dpo.main(words) == 1
    assert capfd.readouterr().err == (
        f"error: out ({tmp_path}/dpo) holds checkpoints/last already: choose another out=...\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["beta=0"], "beta (0.0) must be above 0"),
        (["reduction=max"], "reduction ('max') must be one of sum, mean, turn-mean"),
        (["model=tiny"], "model (tiny) is made for an environment: train it first"),
        (["center=/no/file"], "unknown key 'center'"),
        (["data={empty}"], "data ({empty}) holds no comparison: give it a line for each"),
        (["data={undecided}"], "every held-out pair is labelled 0.5: hold out more"),
    ],
)
def test_a_users_mistake_is_one_line(
    toy_model, preferences, tmp_path, capfd, monkeypatch, words, line
):
    """The error comes before any learning."""
    row = {"chosen": "2", "rejected": "1", "label": 0.5}
    rows = [json.dumps({"prompt": prompt, **row}) + "\n" for prompt in ("0", "1")]
    for name, text in (("empty", ""), ("undecided", "".join(rows))):
        (tmp_path / name).write_text(text)
        words = [word.replace(f"{{{name}}}", f"{tmp_path}/{name}") for word in words]
        line = line.replace(f"{{{name}}}", f"{tmp_path}/{name}")
    monkeypatch.setattr("rl.preferences.training.learn", None)
    common = [f"model={toy_model}", f"data={preferences}", f"out={tmp_path}/dpo"]
    assert rl.dpo.main([*common, *words]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"error: {line}")
