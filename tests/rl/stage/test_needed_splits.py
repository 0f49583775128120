"""Splits that a command needs, asked of the environment before anything is loaded."""

from __future__ import annotations

import json

import pytest

from rl.cli import parse
from rl.config import PRESETS, SFTConfig, TrainConfig
from rl.errors import UsageError
from rl.stage.splits import check_splits
from rl.train import main


def gsm8k(folder, **splits):
    folder.mkdir()
    for split, count in splits.items():
        rows = [{"question": f"{split} {i}?", "answer": f"so\n#### {i}"} for i in range(count)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def config(kind, folder, *words):
    words = ["env=math", f"env.tasks={folder}", *words]
    return parse(kind, words, command="rl.train", presets=PRESETS)


def test_own_train_and_test_files_are_enough_to_train(tmp_path):
    folder = gsm8k(tmp_path / "gsm8k", train=40, test=20)
    check_splits(config(TrainConfig, folder))


@pytest.mark.parametrize(
    ("splits", "key"), [({"train": 40}, "eval.test_tasks"), ({"test": 9, "train": 1}, "eval.tasks")]
)
def test_a_split_that_is_missing_is_refused_with_the_key_that_does_without(tmp_path, splits, key):
    folder = gsm8k(tmp_path / "rows", **splits)
    with pytest.raises(UsageError, match=rf"no rows in split '.*; {key}=0 does without"):
        check_splits(config(TrainConfig, folder))
    check_splits(config(TrainConfig, folder, f"{key}=0"))


def test_without_train_rows_there_is_nothing_to_train(tmp_path, capfd):
    folder = gsm8k(tmp_path / "rows", test=9)
    with pytest.raises(UsageError, match=r"no rows in split 'train'; it has \{'test': 9\}"):
        check_splits(config(TrainConfig, folder, "eval.tasks=0"))
    words = ["env=math", f"env.tasks={folder}", f"out={tmp_path / 'run'}"]
    assert main(words) == 1
    [line] = capfd.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("error: ") and "no rows in split 'train'" in line


def test_imitation_needs_test_rows_only(tmp_path):
    folder = gsm8k(tmp_path / "rows", train=9)
    with pytest.raises(UsageError, match="; test_tasks=0 does without"):
        check_splits(config(SFTConfig, folder))
    check_splits(config(SFTConfig, folder, "test_tasks=0"))
