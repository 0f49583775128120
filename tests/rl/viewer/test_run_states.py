"""How a run is, in the list of runs and in a terminal: state, cause, steps, tests and settings."""

from __future__ import annotations

import json
import platform
import time

import pytest
from viewer_runs import write_run

from rl.run.process.state import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    STALLED,
    RunState,
    write_state,
)
from rl.view import main
from rl.viewer.api import ANSWERS
from rl.viewer.runs import Runs

TESTED = {"test/success": 0.6, "test/success_low": 0.3, "test/success_high": 0.8, "test/tasks": 10}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    return write_run(tmp_path / "runs" / "a")


def write_status(folder, state, step=2, steps=6, **changes):
    """Write a status whose process is gone."""
    fields = {"pid": 1, "born": "0", "host": platform.node(), "began": 0.0, "written": time.time()}
    fields |= {"progress_s": 0.0, "progress": "a step", "loop_s": 0.0} | changes
    write_state(folder, RunState(state=state, step=step, steps=steps, **fields))


def unfinish(folder):
    (folder / "result.json").unlink()


def append(path, *records):
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def listed(folder):
    """The run's line in the list of runs."""
    runs = Runs(folder.parent)
    found = {run["name"]: run for run in ANSWERS["runs"](runs, {})["runs"]}
    runs.close()
    return found[folder.name]


def shown(folder):
    runs = Runs(folder)
    found = ANSWERS["run"](runs, {"run": folder.name})
    runs.close()
    return found


def text(capsys, *words):
    assert main([*map(str, words), "text=true"]) == 0
    return capsys.readouterr().out


# ---- settings that a resume changed --------------------------------------------------------------


def test_the_steps_are_those_of_the_status(run):
    write_status(run, FINISHED, step=6, steps=6)
    assert listed(run)["of_steps"] == 6


# ---- states and causes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "step", "message", "cause"),
    [
        (FAILED, 2, "EnvFailure: no\n  table", "EnvFailure: no table"),
        (FAILED, 2, "", "No reason was recorded."),
        (STALLED, 2, "no progress for 600 s", "no progress for 600 s"),
        (
            INTERRUPTED,
            2,
            "CancelledError: ",
            "Ctrl-C or SIGTERM stopped the run after step 2 of 6.",
        ),
        (INTERRUPTED, 0, "", "Ctrl-C or SIGTERM stopped the run before its first step was done."),
        (RUNNING, 2, "", "The process is gone and left no reason."),
        (FINISHED, 2, "max_seconds (9) ended it", ""),
    ],
)
def test_a_run_that_ended_too_early_has_its_cause_in_one_line(
    run, capsys, state, step, message, cause
):
    unfinish(run)
    write_status(run, state, step=step, message=message, exit_code=75 if state == STALLED else None)
    assert listed(run)["state"]["cause"] == cause
    verdict = "dead" if state == RUNNING else state
    for folder in (run.parent, run):
        out = text(capsys, folder)
        assert out.split()[:3] == ["a", verdict, "search-qa-v0"]
        assert not cause or f"\n  {cause}\n" in out


def test_commands_without_a_status_are_finished_when_they_saved_their_model(run):
    unfinish(run)
    assert listed(run)["state"]["verdict"] == "unfinished"
    (run / "checkpoints" / "last").mkdir()
    assert listed(run)["state"]["verdict"] == "finished"


def test_a_result_without_a_status_gives_the_state(run):
    assert listed(run)["state"]["verdict"] == "finished"
    (run / "result.json").write_text('{"finished": false}')
    assert listed(run)["state"]["verdict"] == "interrupted"
    (run / "result.json").write_text('{"success": 0.5}')
    assert listed(run)["state"]["verdict"] == "finished", "rl.eval"


def test_a_run_that_failed_before_its_settings_were_written(tmp_path, capsys):
    folder = tmp_path / "runs" / "a"
    (folder / "trajectories").mkdir(parents=True)
    write_status(folder, FAILED, step=0, steps=3, message="EnvFailure: tool 'half' failed")
    run = listed(folder)
    assert (run["env"], run["env_name"], run["algo"]) == ("", "", "")
    assert (run["steps"], run["of_steps"]) == (0, 3)
    for place in (folder.parent, folder):
        out = text(capsys, place)
        first, second, *_ = out.splitlines()
        assert " ".join(first.split()) == "a failed step 0/3"
        assert second == "  EnvFailure: tool 'half' failed"
        assert "None" not in out


# ---- tests before and after ----------------------------------------------------------------------


def test_a_test_before_training_is_shown_without_a_result(run, capsys):
    unfinish(run)
    write_status(run, FAILED, message="EnvFailure: x")
    assert (listed(run)["before"], listed(run)["after"]) == (None, None)
    metrics = run / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 0} | TESTED) + "\n" + metrics.read_text())
    rate = {"success": 0.6, "success_low": 0.3, "success_high": 0.8, "tasks": 10}
    assert (listed(run)["before"], listed(run)["after"]) == (rate, None)
    assert "0.60 -> ?" in text(capsys, run.parent)


def test_a_test_after_the_last_step_is_shown_without_a_result(run):
    unfinish(run)
    append(run / "metrics.jsonl", {"step": 3} | TESTED)
    assert listed(run)["after"]["success"] == 0.6
    append(run / "metrics.jsonl", {"step": 4, "reward": 0.5})
    assert listed(run)["after"] is None, "of an earlier end of the run"


def test_the_result_of_an_earlier_end_is_not_the_result_after_more_steps(run):
    assert listed(run)["after"]["success"] == 0.75
    append(run / "metrics.jsonl", {"step": 4, "reward": 0.5})
    assert (listed(run)["before"]["success"], listed(run)["after"]) == (0.25, None)


# ---- names of environments -----------------------------------------------------------------------


def test_an_environment_in_a_file_is_named_without_its_folder(run, capsys):
    config = {"env": {"env_id": "/long/folder/parity.py:Parity"}, "algo": {"name": "grpo"}}
    (run / "config.json").write_text(json.dumps(config))
    line = listed(run)
    assert (line["env"], line["env_name"]) == ("/long/folder/parity.py:Parity", "parity.py:Parity")
    for place in (run.parent, run):
        out = text(capsys, place)
        assert "  parity.py:Parity  " in out
        assert "/long" not in out
