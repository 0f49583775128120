"""The learner's side of a run, repeated from its records."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from rl.replay import DIFFERENT, config_of
from rl.replay import main as replay
from rl.rollout.trajectory_files import read_trajectories, tokens_path
from rl.train import main as train


@pytest.mark.parametrize(
    "settings",
    [
        {"staleness": 2},
        {"algo": "ppo", "env__max_turns": 2},
        {"curriculum__max_draws": 2, "curriculum__keep": 0.5},
        {"curriculum__max_draws": 3, "staleness": 2},
    ],
    ids=["ahead", "ppo", "dropped", "dropped-ahead"],
)
def test_the_same_episodes_make_the_same_weights_bit_for_bit(words, tmp_path, settings, capfd):
    run = tmp_path / "run"
    assert train(words(run, **settings, steps=5)) == 0
    capfd.readouterr()
    assert replay([str(run)]) == 0
    reported = json.loads(capfd.readouterr().out)
    assert reported["equal"] is True
    assert reported["max_difference"] == 0
    assert reported["steps"] == 5


def test_episodes_of_earlier_versions_without_outcomes_make_the_same_weights(
    words, tmp_path, capfd
):
    run = tmp_path / "run"
    assert train(words(run, algo="prime", steps=2)) == 0
    for path in (run / "trajectories").glob("step-*.jsonl.gz"):
        episodes = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        assert {episode.pop("outcome") for episode in episodes} == {0.0, 1.0}
        lines = "".join(json.dumps(episode) + "\n" for episode in episodes)
        path.write_bytes(gzip.compress(lines.encode()))
    capfd.readouterr()
    assert replay([str(run)]) == 0
    assert json.loads(capfd.readouterr().out)["equal"] is True


def test_a_run_of_an_earlier_version_is_replayed_and_continued(words, tmp_path, capfd):
    run, command = tmp_path / "run", tmp_path / "command"
    assert train(words(run, steps=2, packing=False)) == 0
    recorded = json.loads((run / "config.json").read_text())
    for key in ("packing", "memory", "plan"):
        del recorded[key]
    del recorded["optimizer"]["state_bits"]
    del recorded["lora"]["base_bits"]
    (run / "config.json").write_text(json.dumps(recorded))
    shutil.copytree(run, command)
    capfd.readouterr()
    assert config_of(run).packing is False
    assert replay([str(run)]) == 0
    assert json.loads(capfd.readouterr().out)["equal"] is True
    changed = "memory.activation_checkpointing=on (before: auto), steps=3 (before: 2)"
    assert train([f"resume={run}", "steps=3", "memory.activation_checkpointing=on"]) == 0
    assert f"changed settings: {changed}" in capfd.readouterr().err.splitlines()
    (line,) = (run / "changes.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 2, "changes": changed.split(", ")}
    # The changed settings are the run's from then on: a plain resume has nothing left to do.
    assert json.loads((run / "config.json").read_text())["steps"] == 3
    assert train([f"resume={run}"]) == 0
    assert "changed settings" not in capfd.readouterr().err
    assert replay([str(run)]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["equal"] is True
    # Without resume=RUN the command's own settings count, as far as they may differ.
    assert train(words(command, steps=3, resume="auto")) == 0
    capfd.readouterr()
    assert train(words(command, resume="auto", optimizer__max_grad_norm=9)) == 1
    assert "was started with optimizer.max_grad_norm=1.0, not 9.0" in capfd.readouterr().err


def test_files_of_format_1_make_the_same_weights(words, tmp_path, capfd):
    run = tmp_path / "run"
    assert train(words(run, steps=2, staleness=1)) == 0
    for path in (run / "trajectories").glob("step-*.jsonl.gz"):
        episodes = read_trajectories(path)
        tokens_path(path).unlink()
        lines = "".join(json.dumps(episode.to_json()) + "\n" for episode in episodes)
        path.write_bytes(gzip.compress(lines.encode()))
    capfd.readouterr()
    assert replay([str(run)]) == 0
    assert json.loads(capfd.readouterr().out)["equal"] is True


def test_episodes_of_a_newer_version_are_one_line(words, tmp_path, capfd):
    run = tmp_path / "run"
    assert train(words(run, steps=1)) == 0
    path = run / "trajectories" / "step-000001.jsonl.gz"
    episodes = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    lines = "".join(json.dumps(episode | {"format": 3}) + "\n" for episode in episodes)
    path.write_bytes(gzip.compress(lines.encode()))
    capfd.readouterr()
    assert replay([str(run)]) == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"error: {path} has format 3, this turnwise reads formats up to 2: read it with the "
        "turnwise that wrote it"
    )


@pytest.mark.quick
def test_other_episodes_make_other_weights_and_another_exit_code(words, tmp_path, capfd):
    run = tmp_path / "run"
    assert train(words(run, steps=3)) == 0
    path = run / "trajectories" / "step-000002.jsonl.gz"
    episodes = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for episode in episodes[::2]:
        episode["turns"][-1]["rewards"] = {"copied": 1.0}
    for episode in episodes[1::2]:
        episode["turns"][-1]["rewards"] = {"copied": 0.0}
    lines = "".join(json.dumps(episode) + "\n" for episode in episodes)
    path.write_bytes(gzip.compress(lines.encode()))
    capfd.readouterr()
    assert replay([f"run={run}"]) == DIFFERENT
    assert json.loads(capfd.readouterr().out)["equal"] is False


def test_a_run_that_cannot_be_replayed_is_reported_in_one_line(words, tmp_path, capfd):
    assert replay([f"{tmp_path}/none"]) == 1
    assert capfd.readouterr().err == f"error: run={tmp_path}/none: there is no such folder.\n"
    assert replay([f"run={tmp_path}"]) == 1
    assert "holds no run" in capfd.readouterr().err
    run = tmp_path / "run"
    assert train(words(run, steps=3, keep_episodes=1)) == 0
    capfd.readouterr()
    assert replay([f"run={run}"]) == 1
    assert "no episodes of step 1" in capfd.readouterr().err
