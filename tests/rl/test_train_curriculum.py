"""Curricula, mixtures and dynamic sampling in whole runs, stopped and resumed ones among them."""

from __future__ import annotations

import gzip
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from envs.replay import main as replay
from rl.rollout.collector import Collector
from rl.run.folder import read_jsonl
from rl.train import main

pytestmark = pytest.mark.usefixtures("without_charts")
TIMINGS = ("time/", "step_time", "tokens_per_second")
MIX = "2*toy-copy + toy-copy(max_turns=2)"


def metrics(out):
    return [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]


def reported(out):
    """A run's metrics without its timings and validations."""
    skipped = (*TIMINGS, "eval/")
    return [{k: v for k, v in r.items() if not k.startswith(skipped)} for r in metrics(out)]


def episodes(out, step):
    with gzip.open(out / "trajectories" / f"step-{step:06d}.jsonl.gz") as file:
        return [json.loads(line) for line in file]


def tasks(out, step):
    return [(e["part"], e["task"]) for e in episodes(out, step) if e["member"] == 0]


def weights(out):
    return load_file(out / "checkpoints" / "step-000004" / "model.safetensors")


def assert_same_run(first, second):
    assert reported(first) == reported(second)
    expected = weights(second)
    assert all(torch.equal(value, expected[name]) for name, value in weights(first).items())
    assert [tasks(first, step) for step in range(1, 5)] == [tasks(second, s) for s in range(1, 5)]


@pytest.mark.parametrize(
    "curriculum",
    [
        {"curriculum__order": "prioritized", "curriculum__pool": 30, "curriculum__max_draws": 3},
        {"curriculum__order": "easy-to-hard", "curriculum__max_draws": 2},
        {"env": "mix", "env__of": MIX, "curriculum__max_draws": 2},
    ],
    ids=["prioritized", "easy-to-hard", "mix"],
)
def test_a_stopped_or_interrupted_run_goes_on_with_the_same_tasks(
    words, tmp_path, monkeypatch, curriculum
):
    # What is saved at the interruption is where the curriculum stood after the last update.
    shared = {"deterministic": "true", **curriculum}
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(words(whole, **shared)) == 0
    assert any(r["num_groups_dropped"] for r in metrics(whole)), "there was something to draw anew"
    collect, calls = Collector.collect, []

    async def interrupted(self, tasks, group_size, key, *played):
        calls.append(key)
        if key[1:3] == (0, 3):
            os.kill(os.getpid(), signal.SIGINT)
        return await collect(self, tasks, group_size, key, *played)

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", interrupted)
        assert main(words(out, **shared)) == 130
    assert main(words(out, **shared, resume="auto")) == 0
    assert_same_run(out, whole)


def test_tasks_come_from_easy_to_hard_and_those_that_fail_come_more_often(words, tmp_path):
    easy = tmp_path / "easy"
    assert main(words(easy, curriculum__order="easy-to-hard", optimizer__lr=1e-6)) == 0
    shown = [e["observation"] for step in range(1, 5) for e in episodes(easy, step)]
    assert shown == sorted(shown), "a toy's digit is how hard it is"
    failing = tmp_path / "failing"
    settings = {"curriculum__order": "prioritized", "curriculum__pool": 12, "steps": 12}
    assert main(words(failing, **settings, prompts=3, optimizer__lr=1e-9)) == 0
    rates, counts = {}, {}
    for step in range(5, 13):
        for e in episodes(failing, step):
            counts[e["task"]] = counts.get(e["task"], 0) + 1
    for step in range(1, 13):
        for e in episodes(failing, step):
            rates.setdefault(e["task"], []).append(e["turns"][-1]["scores"]["right"])
    by_rate = sorted(rates, key=lambda task: sum(rates[task]) / len(rates[task]))
    seldom, often = (sum(counts.get(t, 0) for t in part) for part in (by_rate[6:], by_rate[:6]))
    assert often > seldom


@pytest.mark.quick
def test_dynamic_sampling_learns_from_full_batches_and_counts_what_it_left_out(words, tmp_path):
    out = tmp_path / "out"
    assert main(words(out, curriculum__max_draws=20)) == 0
    for step, record in enumerate(metrics(out), start=1):
        groups = {}
        for e in episodes(out, step):
            groups.setdefault((e["task"], e["seed"]), []).append(e["turns"][0]["rewards"]["copy"])
        constant = sum(len(set(rewards)) == 1 for rewards in groups.values())
        assert record["num_groups"] == len(groups)
        assert record["num_groups_dropped"] == constant == len(groups) - 6
        assert record["frac_reward_zero_std"] == 0.0, "groups without a gradient are dropped"
        played = [reward for rewards in groups.values() for reward in rewards]
        assert record["reward"] == pytest.approx(sum(played) / len(played))


def test_each_part_of_a_mixture_is_measured_and_replayed_by_itself(words, tmp_path, capfd):
    out = tmp_path / "out"
    assert main(words(out, env="mix", env__of=MIX, eval__test_tasks=6, eval__every=2)) == 0
    parts = {"toy-copy": 16.0, "toy-copy(max_turns=2)": 8.0}
    for record in metrics(out):
        counts = [record[f"parts/{part}/episodes"] for part in parts]
        assert sum(counts) == 24
        mean = sum(record[f"parts/{p}/reward"] * record[f"parts/{p}/episodes"] for p in parts) / 24
        assert record["reward"] == pytest.approx(mean)
    validated = [r for r in read_jsonl(out / "metrics.jsonl") if "eval/success" in r]
    for record in validated:
        rates = [record[f"eval/parts/{part}/success"] for part in parts]
        assert record["eval/success"] == pytest.approx((4 * rates[0] + 2 * rates[1]) / 6)
    played = episodes(out, 4)
    assert {(e["part"], e["env_id"], e["env_options"]["max_turns"]) for e in played} == {
        ("toy-copy", "toy-copy-v0", 1),
        ("toy-copy(max_turns=2)", "toy-copy-v0", 2),
    }
    assert {len(e["turns"]) for e in played if e["part"] == "toy-copy(max_turns=2)"} == {2}
    capfd.readouterr()
    assert replay([str(out / "trajectories" / "step-000004.jsonl.gz")]) == 0
    assert "24 as recorded, 0 not" in capfd.readouterr().out


@pytest.mark.quick
def test_a_folder_keeps_the_episodes_of_the_newest_steps(words, tmp_path):
    out = tmp_path / "out"
    assert main(words(out, steps=4, keep_episodes=2, eval__every=1, eval__test_tasks=2)) == 0
    kept = sorted(path.name for path in (out / "trajectories").iterdir())
    ends = ("jsonl.gz", "learner.npz", "npz")
    assert kept == [
        *(f"step-00000{n}.{end}" for n in (3, 4) for end in ends),
        *(f"test-{when}.{end}" for when in ("after", "before") for end in ("jsonl.gz", "npz")),
        *(f"validation-00000{n}.{end}" for n in (3, 4) for end in ("jsonl.gz", "npz")),
    ]


def test_a_curriculum_that_cannot_be_is_one_line(words, tmp_path, capfd):
    for settings, message in (
        ({"env": "toy-returns", "curriculum__order": "easy-to-hard"}, "does not say how hard"),
        (
            {"env": "mix", "env__of": "knights-knaves", "curriculum__order": "easy-to-hard"},
            "all tasks are equally hard",
        ),
        ({"curriculum__pool": -1}, "curriculum.pool (-1) must be >= 0"),
        ({"env": "mix", "env__of": "toy-copy + nothing"}, "unknown environment 'nothing'"),
    ):
        assert main(words(tmp_path / "out", **settings)) == 1
        lines = capfd.readouterr().err.splitlines()
        assert message in lines[-1], lines
        assert not any(line.startswith("Traceback") for line in lines)
