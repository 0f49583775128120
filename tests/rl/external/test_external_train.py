"""``python -m rl.train env=agent``: a loop of one's own is trained, from the command line on."""

from __future__ import annotations

import json

import pytest

from rl.train import main


@pytest.fixture
def agent(words, loops):
    """The words of a short run with a function of the loops."""

    def agent(out, loop="copy", **settings):
        own = {"env": "agent", "env__loop": f"{loops}:{loop}", "env__tasks": f"{loops}:tasks"}
        return words(out, **{**own, "prompts": 3, "eval__tasks": 3, "steps": 2, **settings})

    return agent


@pytest.mark.quick
def test_a_run_learns_from_what_the_loop_pays(agent, tmp_path, capsys):
    assert main(agent(tmp_path / "run")) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "loss" in row or "reward" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["failures"] == 0 and row["num_turns"] == 1 for row in steps)
    assert "run: " in capsys.readouterr().out


def test_two_deterministic_runs_agree(agent, tmp_path):
    for name in ("a", "b"):
        assert main(agent(tmp_path / name, deterministic=True)) == 0
    kept = ("step", "loss", "grad_norm", "reward", "num_sampled_tokens")
    runs = [
        [
            {key: row.get(key) for key in kept}
            for row in map(json.loads, (tmp_path / n / "metrics.jsonl").read_text().splitlines())
        ]
        for n in ("a", "b")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 2


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"loop": "nowhere"}, "env.loop"),
        ({"env__tasks": ""}, "env.tasks"),
        ({"algo": "vineppo"}, "copies of an episode, and agent-v0 has forkable = False"),
        ({"model": "tiny"}, "give env.demonstrations="),
    ],
)
def test_what_is_missing_is_one_line(agent, tmp_path, capsys, monkeypatch, settings, what):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    assert main(agent(tmp_path / "run", **settings)) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert what in error
