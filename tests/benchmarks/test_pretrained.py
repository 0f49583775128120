"""The commands and the arithmetic of the benchmark with a pretrained model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.learning.pretrained import EVALUATE, RIVAL, RL, START, TESTS, draw, summary
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

HOME = Path(__file__).resolve().parents[2]


def run(seed, before, after, supervised):
    return {
        "seed": seed,
        "before": [before, 0.0, 1.0],
        "after": [after, 0.0, 1.0],
        "supervised": [supervised, 0.0, 1.0],
        "reward": [[1, before], [2, after]],
    }


def test_reinforcement_and_its_rival_train_as_much():
    start = parse(SFTConfig, START, command="rl.sft", presets={})
    rival = parse(SFTConfig, RIVAL, command="rl.sft", presets={})
    learned = parse(TrainConfig, RL, command="rl.train", presets={})
    tested = parse(EvaluateConfig, EVALUATE, command="rl.eval", presets={})
    for config in (start, rival, learned, tested):
        assert config.env == learned.env and config.dtype == learned.dtype
        assert config.context_length == learned.context_length
    # The same adapter, optimizer, number of updates, and a demonstration for each episode.
    assert (rival.lora, rival.optimizer) == (learned.lora, learned.optimizer)
    assert rival.steps == learned.steps
    assert rival.batch_size == learned.prompts * learned.group_size
    assert rival.demonstrations == rival.steps * rival.batch_size > start.demonstrations
    # Both measure the sampled policy on the same test tasks.
    assert (tested.split, tested.tasks) == ("test", learned.eval.test_tasks) == ("test", TESTS)
    assert tested.sampling.temperature == learned.eval.temperature == 1.0


def test_what_is_gained_is_compared_by_seed():
    # Gains of 0.4, 0.5 and 0.6: the half width is t(0.975, 2) * 0.1 / sqrt(3).
    seeds = [run(0, 0.2, 0.6, 0.25), run(1, 0.3, 0.8, 0.25), run(2, 0.1, 0.7, 0.25)]
    rows = {row["test tasks"]: row["success"] for row in summary(seeds)}
    gain = rows["reinforcement minus start"]
    assert gain["each"] == pytest.approx([0.4, 0.5, 0.6])
    assert (gain["low"], gain["high"]) == pytest.approx((0.5 - 0.248414, 0.5 + 0.248414), abs=1e-5)
    assert rows["after reinforcement"]["mean"] == pytest.approx(0.7)
    assert rows["reinforcement minus supervised"]["mean"] == pytest.approx(0.45)
    assert math.isnan(summary(seeds[:1])[0]["success"]["low"])


def test_the_curve_is_drawn(tmp_path):
    draw([run(0, 0.2, 0.6, 0.25), run(1, 0.3, 0.8, 0.25)], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_documentation_shows_measured_values():
    results = json.loads((HOME / "benchmarks" / "results" / "pretrained.json").read_text())
    page = (HOME / "docs" / "environments.md").read_text()
    assert summary(results["seeds"]) == results["table"] and len(results["seeds"]) == 3
    for row in results["table"]:
        found = row["success"]
        each = ", ".join(f"{value:.2f}" for value in found["each"])
        shown = "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**found)
        assert f"| {row['test tasks']} | {each} | {shown} |" in page
    gain = next(r for r in results["table"] if r["test tasks"] == "reinforcement minus start")
    assert gain["success"]["mean"] >= 0.2 and gain["success"]["low"] > 0
