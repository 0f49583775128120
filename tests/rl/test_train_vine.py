"""Runs of ``algo=vineppo``: what they record, what no timing changes, what is refused."""

from __future__ import annotations

import gzip
import json

import pytest

import envs
from rl.run.folder import read_jsonl
from rl.train import main

SETTINGS = {"algo": "vineppo", "algo.advantage.rollouts": 3, "env__max_turns": 2, "steps": 2}
MEASURED = ("loss", "grad_norm", "reward", "vine/tokens", "vine/value", "num_sampled_tokens")


def steps(out):
    return [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]


@pytest.mark.quick
def test_a_run_records_values_and_what_they_cost(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, **SETTINGS)) == 0
    for record in steps(out):
        # 6 first states, and a second one for each of 24 episodes.
        assert record["vine/rollouts"] == 3 * (6 + 24)
        assert record["vine/failed"] == 0.0
        assert 0 < record["vine/value"] < 1
        assert record["vine/tokens"] > record["num_sampled_tokens"]
    with gzip.open(out / "trajectories" / "step-000001.jsonl.gz") as file:
        records = [json.loads(line) for line in file]
    assert [len(record["turns"]) for record in records] == [2] * 24
    drawn = {turn["value"] for record in records for turn in record["turns"]}
    # Each turn pays a half: means of three returns of 0, .5 or 1.
    assert {round(6 * value, 9) for value in drawn} <= set(range(7))
    assert len(drawn) > 2


def test_deterministic_runs_agree(words, tmp_path):
    measured = []
    for name in ("one", "other"):
        out = tmp_path / name
        assert main(words(out, deterministic="true", **SETTINGS)) == 0
        measured.append([[record[key] for key in MEASURED] for record in steps(out)])
    assert measured[0] == measured[1]


def test_it_learns(words, tmp_path):
    out = tmp_path / "run"
    settings = SETTINGS | {"steps": 12, "prompts": 8, "group_size": 6, "env__max_turns": 1}
    assert main(words(out, **settings)) == 0
    rewards = [record["reward"] for record in steps(out)]
    assert rewards[-1] > rewards[0] + 0.1


def test_rewards_that_values_would_not_contain_are_refused(words, tmp_path, capsys):
    assert main(words(tmp_path / "run", shaping="kimi_length", **SETTINGS)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "shaping (kimi_length) must be empty with algo.advantage=vine" in said


def test_an_environment_without_copies_is_refused_before_training(
    words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(envs.env_type("toy-copy-v0"), "forkable", False)
    assert main(words(tmp_path / "run", **SETTINGS)) == 1
    reported = capsys.readouterr()
    assert "copies of an episode, and toy-copy-v0 has forkable = False: choose" in reported.err
    assert "step 1" not in reported.out + reported.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
