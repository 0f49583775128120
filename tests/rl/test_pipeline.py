"""Pipelines: stages in order, what one makes is what another takes, and going on after a stop."""

import json
import shlex
import shutil

import pytest

from rl.pipeline import main
from rl.run.folder import read_jsonl

FILE = """
[settings]
env = "toy-copy"
seed = 3
sampling.max_tokens = 4

[[stage]]
name = "cold-start"
run = "sft"
demonstrations = 32
steps = 2
batch_size = 4
test_tasks = 4

[[stage]]
name = "rl"
run = "train"
model = "{cold-start}"
steps = 2
prompts = 2
group_size = 2

[stage.eval]
tasks = 4
test_tasks = 4
every = 1
"""


@pytest.fixture
def write(tmp_path):
    def write(text=FILE):
        path = tmp_path / "pipeline.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def start(write, tmp_path, toy_model):
    """Run the file with these words; the folder is ``tmp_path / "out"``."""

    def start(*words, text=FILE):
        return main(
            [write(text), f"out={tmp_path / 'out'}", f"cold-start.model={toy_model}", *words]
        )

    return start


def last_error(capsys):
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.quick
def test_each_stage_takes_the_output_of_the_stage_before(start, tmp_path, capsys):
    assert start() == 0
    out = tmp_path / "out"
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made == {
        "cold-start": str(out / "1-cold-start/checkpoints/last"),
        "rl": str(out / "2-rl/checkpoints/best"),
    }
    config = json.loads((out / "2-rl/config.json").read_text())
    assert (config["model"], config["seed"]) == (made["cold-start"], 3)
    assert config["sampling"]["max_tokens"] == 4
    # Again: nothing is left to do.
    before = (out / "2-rl/metrics.jsonl").read_text()
    assert start() == 0
    assert capsys.readouterr().err.count("already done") == 2
    assert (out / "2-rl/metrics.jsonl").read_text() == before


def test_a_stage_that_stopped_goes_on(start, tmp_path, capsys):
    """One step, then the record of the stage is lost, as if it had been stopped: two more."""
    out = tmp_path / "out"
    assert start("rl.steps=1") == 0
    (out / "2-rl/stage.json").unlink()
    assert start("rl.steps=3") == 0
    steps = [r["step"] for r in read_jsonl(out / "2-rl/metrics.jsonl") if "reward" in r]
    assert steps == [1, 2, 3]
    assert "stage 1/2, cold-start: already done" in capsys.readouterr().err


def test_files_of_an_unfinished_stage_are_removed(start, tmp_path):
    """Commands that do not resume begin anew, whatever they had written; others' files stay."""
    out = tmp_path / "out"
    assert start("rl.steps=1") == 0
    for folder in ("1-cold-start", "2-rl"):
        (out / folder / "stage.json").unlink()
    (out / "1-cold-start/half").touch()
    assert start("rl.steps=1") == 0
    assert not (out / "1-cold-start/half").exists()
    assert (out / "1-cold-start/stage.json").exists()
    shutil.rmtree(out)
    (out / "1-cold-start").mkdir(parents=True)
    (out / "1-cold-start/mine").touch()
    assert start("rl.steps=1") == 0
    assert (out / "1-cold-start/mine").exists()


def test_a_stage_made_from_a_missing_stage_is_refused(start, tmp_path, capsys):
    """Or the second stage would pass for one of the new first stage."""
    out = tmp_path / "out"
    assert start("rl.steps=1") == 0
    shutil.rmtree(out / "1-cold-start")
    assert start("rl.steps=1", "cold-start.steps=3") == 1
    reported = (
        f"stage 'rl' in {out}/2-rl was made from a 'cold-start' that is gone: delete that folder"
    )
    assert reported in last_error(capsys)
    assert not (out / "1-cold-start").exists()
    shutil.rmtree(out / "2-rl")
    assert start("rl.steps=1", "cold-start.steps=3") == 0


def test_other_settings_are_another_pipeline(start, capsys):
    assert start() == 0
    assert start("cold-start.steps=3") == 1
    error = last_error(capsys)
    assert "stage 'cold-start' in" in error
    assert "was made with other settings (steps): choose another out=..." in error


def test_a_stage_that_fails_ends_it(start, tmp_path, capsys):
    assert start("rl.model=/nowhere") == 1
    assert "model (/nowhere)" in last_error(capsys)
    assert (tmp_path / "out/1-cold-start/stage.json").exists()
    assert not (tmp_path / "out/2-rl/stage.json").exists()


def test_a_dry_run_says_the_commands(start, capsys, tmp_path):
    shaping = "reward_model(path='x y')"
    assert start("--dry-run", "seed=7", f"rl.shaping={shaping}") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("python -m rl.sft env=toy-copy seed=7 sampling.max_tokens=4")
    assert f"model={tmp_path}/out/1-cold-start/checkpoints/last" in second
    assert f"shaping={shaping}" in shlex.split(second), "a shell reads it as it was meant"
    # As other commands say it; it must not pass for a run.
    assert start("dry_run=true") == 0
    assert not (tmp_path / "out").exists()


STAGE = '[[stage]]\nname = "a"\nrun = "sft"\nenv = "toy-copy"\n'


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("", [], "must hold [[stage]] tables and at most one [settings]"),
        ("[other]\n" + STAGE, [], "must hold [[stage]] tables"),
        ('[[stage]]\nrun = "sft"\n', [], "a stage's name (None) must be letters"),
        ('[[stage]]\nname = "a"\nrun = "play"\n', [], "stage 'a': run (play) must be one of train"),
        (STAGE + STAGE, [], "two stages have the same name (a, a)"),
        (STAGE + 'model = "{b}"\n', [], "stage 'a': model ({b}) names no earlier stage: there"),
        (STAGE + "stepz = 3\n", [], "stage 'a': unknown key 'stepz'. Did you mean 'steps'?"),
        (STAGE + "steps = 0\n", [], "stage 'a': steps (0) must be >= 1"),
        (
            STAGE + "steps = 2\n",
            ["steps=3"],
            "is set by every stage that has it (give a.steps=...) in",
        ),
        (STAGE, ["a.out=x"], "stage 'a': out (x): drop it, each stage gets a folder within"),
        (STAGE, ["a.dry_run=true"], "stage 'a': dry_run (true): drop it, --dry-run applies to"),
        (
            STAGE.replace('"sft"', '"train"'),
            ["resume=auto"],
            "stage 'a': resume (auto): drop it, the same command line continues the pipeline",
        ),
        (STAGE, ["steps"], "'steps' is not of the form key=value"),
        (STAGE, ["group_size=3"], "setting 'group_size' belongs to no stage in"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(write, text, words, message, capsys, tmp_path):
    assert main([write(text), f"out={tmp_path / 'out'}", *words]) == 1
    error = last_error(capsys)
    assert message in error and error.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "usage: python -m rl.pipeline FILE out=FOLDER" in capsys.readouterr().out
