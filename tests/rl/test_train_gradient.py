"""A run whose rewards give no gradient reports it on the screen and in its result."""

from __future__ import annotations

import json

import pytest
from toy_envs import CopyEnv

from envs.episode import finish
from rl.run.folder import read_jsonl
from rl.train import main


def pay(monkeypatch, reward):
    """Have ``reward(digit)`` paid for whatever is answered to a digit."""

    def turn(self, action):
        worth = reward(self.state[0])
        return finish({"copy": worth}, scores={"right": worth})

    monkeypatch.setattr(CopyEnv, "turn", turn)


@pytest.mark.parametrize(
    ("reward", "cause", "said"),
    [
        (lambda digit: 0.0, "none_succeeded", "no episode succeeded"),
        (lambda digit: float(digit == 1), "equal", "all rewards of each task were equal"),
    ],
    ids=["all-0", "by-task"],
)
def test_a_run_in_which_all_groups_are_tied(
    words, tmp_path, capfd, monkeypatch, reward, cause, said
):
    pay(monkeypatch, reward)
    out = tmp_path / "run"
    assert main(words(out, steps=4, env__max_turns=1)) == 0
    steps = [r for r in read_jsonl(out / "metrics.jsonl") if "num_groups" in r]
    assert [(r["loss"], r["grad_norm"]) for r in steps] == [(0.0, 0.0)] * 4
    assert all(r[f"no_gradient/{cause}"] == 1 for r in steps)
    assert all(0 <= r["reward_low"] <= r["reward_high"] <= 1 for r in steps)
    stderr = capfd.readouterr().err
    assert stderr.count("no gradient: ") == 4
    assert "warning: no gradient from rewards in the last 3 of 3 steps" in stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("no gradient from rewards in the last 4 of 4 steps: ")
    assert said in last
    assert "What to try: " in last
    result = json.loads((out / "result.json").read_text())
    assert result["steps_without_gradient"] == result["last_steps_without_gradient"] == 4
    assert result["no_gradient_causes"] == {cause: 4}
    assert result["what_to_try"]
    assert result["finished"] is True


def test_answers_that_are_cut_are_the_cause_that_is_named(words, tmp_path, monkeypatch):
    pay(monkeypatch, lambda digit: 0.0)
    out = tmp_path / "run"
    assert main(words(out, steps=1, env__max_turns=1, sampling__max_tokens=1)) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["no_gradient_causes"] == {"cut": 1}
    assert "sampling.max_tokens" in result["what_to_try"]


@pytest.mark.quick
def test_the_result_of_a_run_that_learns(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=2, env__max_turns=1, eval__test_tasks=6)) == 0
    assert "no gradient" not in capfd.readouterr().err
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 2
    assert result["steps_without_gradient"] == 0
    assert result["what_to_try"] == ""
    tests = [r for r in read_jsonl(out / "metrics.jsonl") if "test/success" in r]
    for key, record in zip(("before", "after"), tests, strict=True):
        expected = {k: record[f"test/{k}"] for k in ("success", "success_low", "success_high")}
        assert result[key] == expected | {"tasks": record["test/tasks"]}
    steps = [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    assert all(r["reward_low"] < r["reward"] < r["reward_high"] for r in steps)
