"""A run's folder as a word: ``model=``, ``config=`` and ``resume=``."""

from __future__ import annotations

import json

import pytest

from rl.errors import UsageError
from rl.run.folder import RunFolder
from rl.run.process.command import run_command
from rl.settings.evaluate import EvaluateConfig
from rl.settings.models import find_model
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking.json_lines import JsonLines


def train(*words):
    return parse(TrainConfig, words, command="python -m rl.train", presets=PRESETS)


def saved(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that was begun with settings of its own."""
    monkeypatch.chdir(tmp_path)
    words = ("env=toy-chatter", "env.tool_s=0.5", "algo=ppo", "steps=7", "optimizer.betas=0.5,0.75")
    config = train(*words, "out=runs/here")
    folder = RunFolder(tmp_path / "runs" / "here", config)
    folder.write_config(config, {})
    JsonLines(folder.metrics_path).log(1, {})
    return folder


def test_a_runs_folder_stands_for_its_best_then_last_then_newest_checkpoint(run):
    with pytest.raises(UsageError, match=r"^model \(runs/here\) is a run that saved no model yet"):
        find_model("runs/here")
    # A run whose warm start was interrupted has no folder of checkpoints either.
    (run.path / "checkpoints").rmdir()
    with pytest.raises(UsageError, match=r"^model \(runs/here\) is a run that saved no model yet"):
        find_model("runs/here")
    for name in ("step-000020", "step-000100", "last", "best"):
        saved(run.checkpoints / name)
        assert find_model("runs/here") == f"runs/here/checkpoints/{name}"
    assert find_model("runs/here/checkpoints/last") == "runs/here/checkpoints/last"


def test_a_run_with_a_relative_path_of_tasks_resumes_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    out = tmp_path / "run"
    config = train("env=math", "env.tasks=rows.jsonl", f"out={out}")
    assert config.env.options.tasks == str(tmp_path / "rows.jsonl")
    assert train("env=math", "env.tasks=none.jsonl").env.options.tasks == "none.jsonl"
    folder = RunFolder(out, config)
    folder.write_config(config, {})
    JsonLines(folder.metrics_path).log(1, {})
    recorded = json.loads((out / "config.json").read_text())
    recorded["env"]["options"]["tasks"] = "rows.jsonl"  # as earlier versions recorded it
    (out / "config.json").write_text(json.dumps(recorded))
    assert RunFolder(out, train(f"resume={out}")).changes == []
    folder.write_config(config, {})
    monkeypatch.chdir("/")
    assert train(f"resume={out}").env.options.tasks == str(tmp_path / "rows.jsonl")
    assert RunFolder(out, train(f"resume={out}")).changes == []


def test_rows_that_changed_since_the_run_began_are_named(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "1 + 1?", "answer": 2}\n')
    config = train("env=math", f"env.tasks={rows}", f"out={tmp_path}/run")
    folder = RunFolder(tmp_path / "run", config)
    assert folder.changed_files() == [], "an earlier version recorded no file"
    folder.write_config(config, {})
    assert folder.changed_files() == []
    rows.write_text('{"question": "1 + 2?", "answer": 3}\n')
    assert folder.changed_files() == [str(rows)]
    rows.unlink()
    assert folder.changed_files() == [str(rows)]


@pytest.mark.parametrize("model", ["tiny", "gpt2", "Qwen/Qwen3-0.6B", "0x/m"])
def test_names_of_the_hub_are_left_alone(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model(model) == model


def test_a_name_beside_runs_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        find_model("runs/none")
    assert find_model("trained/none") == "trained/none"
    (tmp_path / "trained/a/checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="does not exist"):
        find_model("trained/none")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("runs/none", "model (runs/none) does not exist: no such folder."),
        ("runs/her", "model (runs/her) does not exist: no such folder. Did you mean 'runs/here'?"),
        ("./here", "model (./here) does not exist: no such folder."),
        ("/none/at/all", "model (/none/at/all) does not exist: no such folder."),
        ("runs/empty", "model (runs/empty) holds no model (config.json or adapter_config.json): "),
        ("runs/file", "model (runs/file) is a file: give the folder of a model, or of a run"),
        (
            "runs/stages",
            "model (runs/stages) holds no model (config.json or adapter_config.json): ",
        ),
    ],
)
def test_a_folder_that_is_no_model_is_one_line_before_anything_is_loaded(run, model, line, capsys):
    (run.path.parent / "empty").mkdir()
    (run.path.parent / "file").write_text("")
    (run.path.parent / "stages" / "1-rl" / "checkpoints").mkdir(parents=True)

    def work(config):
        raise AssertionError("it must not begin")

    assert run_command("rl.eval", EvaluateConfig, {}, work, ["env=toy-copy", f"model={model}"]) == 1
    reported = capsys.readouterr().err
    assert reported.startswith(f"error: {line}") and reported.count("\n") == 1
    assert ("give one of runs/stages/1-rl" in reported) == (model == "runs/stages")


def test_a_command_gets_the_checkpoint_of_the_run_that_it_was_given(run):
    saved(run.checkpoints / "best")
    got = []
    words = ["env=toy-copy", "model=runs/here"]
    assert run_command("rl.eval", EvaluateConfig, {}, lambda c: got.append(c) or 0, words) == 0
    assert got[0].model == "runs/here/checkpoints/best"


@pytest.mark.parametrize("word", ["config=runs/here/config.json", "config=runs/here"])
def test_the_configuration_of_a_run_is_read(run, word):
    recorded = json.loads((run.path / "config.json").read_text())
    config = train(word)
    assert config == train(
        "env=toy-chatter",
        "env.tool_s=0.5",
        "algo=ppo",
        "steps=7",
        "optimizer.betas=0.5,0.75",
        "out=runs/here",
    )
    assert recorded["algo"]["name"] == config.algo.name == "ppo"
    assert train(word, "steps=9").steps == 9, "the command line wins over it"


def test_to_resume_a_folder_is_enough(run):
    config = train("resume=runs/here")
    assert (config.resume, config.out, config.steps) == ("auto", "runs/here", 7)
    assert (config.env.options.tool_s, config.algo.name) == (0.5, "ppo")
    assert RunFolder(run.path, config).changes == []


def test_changed_settings_of_a_resumed_run_are_refused_or_listed(run):
    changed = train("resume=runs/here", "steps=20", "eval.every=3")
    reported = RunFolder(run.path, changed).changes
    assert reported == ["eval.every=3 (before: 10)", "steps=20 (before: 7)"]
    with pytest.raises(UsageError, match=r"was started with prompts=32, not 4: continue with"):
        RunFolder(run.path, train("resume=runs/here", "prompts=4"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["resume=runs/none"], "resume=runs/none: there is no such folder."),
        (
            ["resume=runs/hera"],
            "resume=runs/hera: there is no such folder. Did you mean 'runs/here'?",
        ),
        (["resume=runs"], "resume=runs holds no run: runs/config.json is missing"),
        (
            ["resume=runs/here", "out=runs/b"],
            "out (runs/b) must be left out with resume=runs/here: it names the folder",
        ),
        (["config=runs/bad.json"], "config=runs/bad.json: runs/bad.json is no configuration of"),
        (["config=runs/no.json"], "config=runs/no.json: runs/no.json cannot be read (No such"),
        (["config=runs"], "config=runs is a folder without a config.json: give a TOML file, or a"),
    ],
)
def test_a_wrong_folder_is_one_line(run, words, line):
    (run.path.parent / "bad.json").write_text("[1, 2]")
    with pytest.raises(UsageError) as refused:
        train(*words)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
