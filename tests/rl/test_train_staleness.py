"""Runs in which episodes are played ahead of the weights that learn from them."""

from __future__ import annotations

import json

import pytest

from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import read_trajectories
from rl.train import main

pytestmark = pytest.mark.usefixtures("without_charts")


def metrics(out) -> list[dict]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "loss" in record]


def tasks_learned(out) -> list[int]:
    paths = sorted((out / "trajectories").glob("step-*.jsonl.gz"))
    played: list[Trajectory] = [t for path in paths for t in read_trajectories(path)]
    return [t.task for t in played if t.member == 0]


@pytest.mark.quick
def test_no_token_is_older_than_the_bound_and_each_task_is_learned_once(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, staleness=2, steps=8)) == 0
    reported = metrics(out)
    assert len(reported) == 8
    assert max(record["staleness/oldest"] for record in reported) == 2
    assert all(record["staleness/oldest"] <= 2 for record in reported)
    assert reported[0]["staleness/oldest"] == 0
    assert "correction/effective_samples" in reported[-1], (
        "older tokens are corrected for by default"
    )
    learned = tasks_learned(out)
    assert len(learned) == 8 * 6
    assert len(set(learned)) == len(learned), "the split has more tasks than were played"


def test_a_stopped_run_goes_on_and_repeats_and_skips_no_task(words, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(words(whole, staleness=1, steps=6)) == 0
    assert main(words(parts, staleness=1, steps=3)) == 0
    assert main(words(parts, staleness=1, steps=6, resume="auto")) == 0
    assert sorted(tasks_learned(parts)) == sorted(tasks_learned(whole))
    assert [record["step"] for record in metrics(parts)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deterministic": "true"}, "deterministic needs staleness=0"),
        ({"staleness": -1}, "staleness (-1) must be >= 0"),
    ],
)
def test_settings_that_exclude_staleness_are_named(words, tmp_path, settings, message, capfd):
    assert main(words(tmp_path / "run", **{"staleness": 1} | settings)) == 1
    assert message in capfd.readouterr().err
