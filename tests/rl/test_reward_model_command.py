"""``rl.reward_model`` from its command line to a reward model that ranks what it never saw."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from transformers import AutoTokenizer

import rl.reward_model
from agents.renderer import Renderer
from rl.credit.shaping import Member, make_shapings
from rl.data.conversations import conversation_of
from rl.learner.settings import OptimizerConfig
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import PreferenceUpdater
from rl.rollout.trajectory import Trajectory, Turn
from rl.run.screen import Screen


def chat(prompt, said):
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": said}]


@pytest.fixture
def preferences(tmp_path):
    """An answer with the last shown digit is preferred."""
    path = tmp_path / "preferences.jsonl"
    rows = []
    for prompt in map("".join, itertools.product("012", repeat=4)):
        right, others = prompt[-1], [c for c in "012" if c != prompt[-1]]
        rows.append({"prompt": prompt, "chosen": right, "rejected": others[int(prompt[0]) % 2]})
        scores = [c == right for c in "012"]
        rows.append({"prompt": prompt, "completions": list("012"), "scores": scores})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_reward_model_learns_preferences_and_is_centred(
    toy_model, preferences, tmp_path, capfd, monkeypatch
):
    demonstrations = tmp_path / "demonstrations.jsonl"
    shown = [chat(d, d) for d in "012"]
    demonstrations.write_text("".join(json.dumps({"messages": m}) + "\n" for m in shown))
    words = [f"model={toy_model}", f"data={preferences}", f"out={tmp_path}/rm", "steps=80"]
    words += ["optimizer.lr=5e-3", "batch_size=16", "held_out=0.2", f"center={demonstrations}"]
    bars = list[tuple[str, int, int]]()
    monkeypatch.setattr(Screen, "count", lambda screen, *bar: bars.append(bar))
    assert rl.reward_model.main(words) == 0
    stdout, stderr = capfd.readouterr()
    reported = json.loads(stdout)
    # log 2 for a pair, and of a ranking's three pairs one is a tie.
    assert reported["first_loss"] == pytest.approx((1 + 2 / 3) / 2 * math.log(2), abs=0.05)
    folder = Path(reported["model"]).parents[1]
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps] == list(range(1, reported["steps"] + 1))
    assert (steps[0]["loss"], steps[-1]["loss"]) == (reported["first_loss"], reported["last_loss"])
    assert "accuracy" in steps[0]
    assert json.loads((folder / "config.json").read_text())["held_out"] > 0
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert reported["last_loss"] < 0.35
    assert reported["accuracy"] > 0.9
    assert reported["accuracy_low"] < reported["accuracy"] <= reported["accuracy_high"]
    assert reported["held_out_pairs"] == 48, (
        "16 of 81 prompts, each with a pair and a ranking of two"
    )
    first, second, *_ = stderr.splitlines()
    assert first == f"reward model of {toy_model} on {preferences}: {tmp_path}/rm"
    assert second == "130 rows to learn from, 32 held out"
    assert [bar for bar in bars if bar[1] in (1, 80)] == [
        ("optimizer steps", 1, 80),
        ("optimizer steps", 80, 80),
    ]
    assert reported["reward_std"] > 0.3

    rewarder = RewardModel.load(reported["model"])
    renderer = Renderer(AutoTokenizer.from_pretrained(reported["model"]))
    rewards = PreferenceUpdater(rewarder, OptimizerConfig()).rewards(
        [conversation_of(messages).to_segment(renderer) for messages in shown]
    )
    assert fmean(rewards) == pytest.approx(0, abs=1e-5), "demonstrations have mean reward 0"
    assert rewarder.bias == pytest.approx(reported["reward_bias"])


def test_a_row_that_is_too_long_is_named_by_its_place_in_the_file(
    toy_model, preferences, tmp_path, capfd
):
    lines = preferences.read_text().splitlines()
    lines[12] = json.dumps(json.loads(lines[12]) | {"rejected": "0" * 5000})
    preferences.write_text("\n".join(lines))
    words = [f"model={toy_model}", f"data={preferences}", f"out={tmp_path}/rm"]
    assert rl.reward_model.main(words) == 1
    assert "error: row 13 of 162 has 50" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data=/no/file"], "data (/no/file) must be a file of JSON lines"),
        (["model=tiny"], "model (tiny) is made for an environment: train it first"),
        (["held_out=1"], "held_out (1.0) must be above 0 and below 1"),
        (["batch_size=0"], "batch_size (0) must be >= 1"),
        (["center=/no/file"], "center (/no/file) must be a file of JSON lines"),
        (["process=true", "center=x"], "center (x) must be empty with process=true"),
        (["process=true"], "{data}, line 1: expected {"),
        (["out={env}"], "out ({env}) may hold {seed}"),
        (["seed=-1"], "seed (-1) must be >= 0"),
    ],
)
def test_a_users_mistake_is_one_line(toy_model, preferences, tmp_path, capfd, words, line):
    common = [f"model={toy_model}", f"data={preferences}", f"out={tmp_path}/rm"]
    assert rl.reward_model.main([*common, *words]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr.splitlines()[-1].startswith(f"error: {line.replace('{data}', str(preferences))}")


def test_missing_settings_are_named(capfd):
    assert rl.reward_model.main([]) == 1
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert "data" in error and "model" in error


def test_a_process_model_learns_steps_and_is_no_reward_model(toy_model, tmp_path, capfd):
    """A "2" is right, "1" is not, and "0" leads to a right answer three times in four."""
    data = tmp_path / "steps.jsonl"
    rows = []
    for prompt in map("".join, itertools.product("012", repeat=3)):
        for first, second in itertools.product("012", repeat=2):
            labels = [{"0": 0.75, "1": 0, "2": 1}[step] for step in (first, second)]
            rows.append({"prompt": prompt, "completions": [first, second], "labels": labels})
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"model={toy_model}", f"data={data}", f"out={tmp_path}/prm", "process=true"]
    words += ["steps=40", "batch_size=32", "optimizer.lr=5e-3", "held_out=0.2"]
    assert rl.reward_model.main(words) == 0
    reported = json.loads(capfd.readouterr().out)
    assert reported["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert reported["accuracy"] > 0.95
    assert reported["held_out_steps"] == 5 * 9 * 2
    assert RewardModel.load(reported["model"]).of_steps

    [wrong] = make_shapings(f"reward_model(path={reported['model']!r})")
    with pytest.raises(ValueError, match="holds no reward_model: it was trained to be a process_m"):
        wrong.contributions([])
    [by_turns] = make_shapings(f"process_model(path={reported['model']!r})")
    renderer = Renderer(AutoTokenizer.from_pretrained(toy_model))
    given = by_turns.contributions([episode(renderer, "02", said) for said in "201"])
    assert given == pytest.approx([1, 0.75, 0], abs=0.2)


def episode(renderer, shown, said):
    segment = conversation_of(chat(shown, said)).to_segment(renderer)
    turn = Turn(said, "", "stop_token", sum(segment.loss_mask))
    played = Trajectory("x", {}, 0, 0, 0, [segment], [turn], terminated=True)
    return Member(turn.num_tokens, False, 0.0, episode=played)
