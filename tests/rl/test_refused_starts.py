"""Wrong data and models are refused in one line, before torch is loaded; no folder stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rl.dpo
import rl.sft
import rl.train
from envs.datasets import DatasetUnavailable
from rl.errors import RunFailure, UsageError
from rl.files import claimed_folder, discard_if_refused

HOME = Path(__file__).resolve().parents[2]


WITHOUT_TORCH = """
import importlib, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch was imported")

sys.meta_path.insert(0, Refuses())
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""


def without_torch(module, *words, cwd):
    """A command in a process of its own, in which importing torch fails."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, module, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("rl.train", []),
        ("rl.eval", ["out=out"]),
        ("rl.sft", []),
        ("rl.distill", []),
        ("rl.step_labels", ["model=gpt2", "data=nothing.jsonl"]),
    ],
)
def test_missing_rows_are_named_before_torch_is_loaded(module, words, tmp_path):
    done = without_torch(module, "env=math", "env.tasks=nothing.jsonl", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: nothing.jsonl: no such file or folder")
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"]


def test_a_missing_file_of_conversations_is_named_before_torch_is_loaded(tmp_path):
    done = without_torch("rl.sft", "model=gpt2", "data=nothing.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        'error: data (nothing.jsonl) must be "demonstrations" or a file of JSON lines, {"messages"'
    )


def test_a_file_without_conversations_is_named_before_the_warm_start(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    done = without_torch("rl.sft", "env=math", "data=rows.jsonl", "out=out", cwd=tmp_path)
    assert done.returncode == 1
    expected = 'error: rows.jsonl, line 1: expected {"messages": [...]} with user and assistant'
    assert done.stderr.splitlines()[-1].startswith(expected)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["rl.train", "rl.eval", "rl.sft"])
def test_a_missing_demonstrator_is_named_before_torch_is_loaded(module, tmp_path):
    rows = [{"question": f"{i} + 1?", "answer": i + 1, "split": "train"} for i in range(5)]
    rows += [{**row, "split": "test"} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = without_torch(module, "env=math", "env.tasks=rows.jsonl", "out=out", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: math-v0 has no demonstrator to imitate: train one without these options first "
        "(python -m rl.sft env=math-v0), or take another model than model=tiny: model=FOLDER or a "
        "Hugging Face id"
    )
    assert not (tmp_path / "out").exists()


def test_a_mistyped_tool_is_named_before_torch_is_loaded(tmp_path):
    words = ["env=math", "env.tools=calculater"]
    done = without_torch("rl.train", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "calculater" in done.stderr.splitlines()[-1]
    assert "Did you mean 'calculator'?" in done.stderr.splitlines()[-1]


def test_an_evaluation_reports_its_tasks_before_torch_is_loaded(tmp_path):
    rows = [{"question": f"{i} + 1?", "answer": i + 1} for i in range(5)]
    (tmp_path / "five.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["env=math", "env.tasks=five.jsonl", "model=gpt2", "episodes=2"]
    done = without_torch("rl.eval", *words, cwd=tmp_path)
    assert done.stderr.splitlines()[:2] == [
        "evaluation of gpt2 in math-v0",
        "playing 5 of 5 rows (no row names a split, so every row counts as test), each 2 times, "
        "policy local",
    ]
    assert "torch was imported" in done.stderr


def broken_model(folder):
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "nothing"}')
    return folder


def test_a_start_with_a_broken_model_leaves_no_folder(tmp_path, capfd):
    words = ["env=toy-copy", f"model={broken_model(tmp_path / 'model')}", f"out={tmp_path}/run"]
    for main in (rl.train.main, rl.sft.main):
        assert main(words) == 1
        assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
        assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    assert rl.train.main(words) == 1
    assert (tmp_path / "run").is_dir(), "a folder that was there before stays"


def test_training_on_a_file_that_is_missing_leaves_no_folder(toy_model, tmp_path, capfd):
    words = [f"model={toy_model}", f"data={tmp_path}/none.jsonl", f"out={tmp_path}/dpo"]
    assert rl.dpo.main(words) == 1
    assert "none.jsonl) must be a file of JSON lines" in capfd.readouterr().err
    assert not (tmp_path / "dpo").exists()


@pytest.mark.parametrize("error", [UsageError("x"), DatasetUnavailable("x")])
def test_a_refused_start_removes_its_new_folder(tmp_path, error):
    folder = tmp_path / "runs" / "x"
    with pytest.raises(type(error)), claimed_folder(folder, ("result.json",)):
        (folder / "checkpoints").mkdir()
        (folder / "metrics.jsonl").touch()
        raise error
    assert not folder.exists()


@pytest.mark.parametrize("kept", ["metrics.jsonl", "checkpoints/step-000001", "logs/vllm-0.log"])
def test_results_and_logs_are_kept(tmp_path, kept):
    folder = tmp_path / "x"
    with pytest.raises(UsageError), discard_if_refused(folder):
        (folder / kept).parent.mkdir(parents=True)
        (folder / kept).write_text("1\n")
        raise UsageError("x")
    assert (folder / kept).exists()


def test_a_failure_that_is_not_of_the_inputs_keeps_the_folder(tmp_path):
    folder = tmp_path / "x"
    with pytest.raises(RunFailure), claimed_folder(folder, ()):
        raise RunFailure("x")
    assert folder.is_dir()
