"""Splits and tasks of a command, asked of the environment before anything is loaded."""

from __future__ import annotations

import json

import pytest

from rl.errors import UsageError
from rl.run.splits import check_splits, tasks_to_play
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.parsing.plain import to_plain
from rl.settings.train import PRESETS, TrainConfig
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
    with pytest.raises(UsageError, match=rf"no rows in split '.*; {key}=0 needs none"):
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
    with pytest.raises(UsageError, match="; test_tasks=0 needs none"):
        check_splits(config(SFTConfig, folder))
    check_splits(config(SFTConfig, folder, "test_tasks=0"))


def benchmark(tmp_path, count=500):
    """A file in MATH-500's layout: no row names a split, nor does the file."""
    path = tmp_path / "math500.jsonl"
    rows = [{"problem": f"Problem {i}", "answer": f"{i}"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("words", "split", "tasks", "says"),
    [
        ([], "all", 500, "500 of 500 rows (no row names a split, so every row counts as test)"),
        (["split=all"], "all", 500, "500 of 500 rows"),
        (["tasks=20"], "all", 20, "20 of 500 rows (no row names a split, so every row counts"),
        (["split=held-out"], "test", None, "of 500 rows (no row names a split: these are for"),
    ],
)
def test_every_row_of_a_benchmark_is_played(tmp_path, words, split, tasks, says):
    played = tasks_to_play(config(EvaluateConfig, benchmark(tmp_path), *words))
    assert (played.split, played.of) == (split, 500)
    assert played.tasks == tasks or (tasks is None and 30 < played.tasks < 80)
    assert says in str(played)


def test_an_evaluation_on_training_rows_is_noted(tmp_path, monkeypatch):
    run = tmp_path / "run"
    best = run / "checkpoints" / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    rows, seen = (
        benchmark(tmp_path),
        "including rows that this model was trained on: split=held-out",
    )
    trained = config(TrainConfig, "math500.jsonl", "steps=1")
    (run / "config.json").write_text(json.dumps(to_plain(trained)))
    monkeypatch.chdir(tmp_path)
    assert seen in str(tasks_to_play(config(EvaluateConfig, rows, f"model={best}")))
    assert seen in str(tasks_to_play(config(EvaluateConfig, "math500.jsonl", f"model={best}")))
    held_out = config(EvaluateConfig, rows, f"model={best}", "split=held-out")
    assert seen not in str(tasks_to_play(held_out))
    other = rows.rename(tmp_path / "other.jsonl")
    assert seen not in str(tasks_to_play(config(EvaluateConfig, other, f"model={best}")))
    assert seen not in str(tasks_to_play(config(EvaluateConfig, other)))


def test_a_model_that_learned_from_conversations_was_not_trained_on_the_rows(tmp_path):
    best = tmp_path / "run" / "checkpoints" / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    rows, record = benchmark(tmp_path), best.parents[1] / "config.json"
    for data, seen in (("chats.jsonl", False), ("demonstrations", True)):
        record.write_text(json.dumps(to_plain(config(SFTConfig, rows, f"data={data}"))))
        played = str(tasks_to_play(config(EvaluateConfig, rows, f"model={best}")))
        assert ("this model was trained on" in played) == seen, data


def test_rows_of_a_named_split_that_cannot_be_tasks_are_counted(tmp_path, caplog):
    folder = gsm8k(tmp_path / "gsm8k", train=40, test=30)
    with (folder / "test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "?", "answer": r"#### 0.\overline{x}"}) + "\n")
    played = tasks_to_play(config(EvaluateConfig, folder))
    assert str(played) == "30 of 31 test rows; 1 cannot be tasks"
    assert "1 of 31 test rows are left out" in caplog.text
    assert "no validation split" not in caplog.text


def test_rows_that_name_their_split_are_counted_within_it(tmp_path):
    folder = gsm8k(tmp_path / "gsm8k", train=40, test=600)
    assert str(tasks_to_play(config(EvaluateConfig, folder))) == "600 of 600 test rows"
    some = tasks_to_play(config(EvaluateConfig, folder, "tasks=100"))
    assert str(some) == "100 of 600 test rows"
    assert str(tasks_to_play(config(EvaluateConfig, folder, "split=all"))) == "640 of 640 rows"
    alone = gsm8k(tmp_path / "train", train=40)
    with pytest.raises(UsageError, match=r"no rows in split 'test'; .*; split=all plays every row"):
        tasks_to_play(config(EvaluateConfig, alone))


def test_generated_tasks_are_counted_too():
    made = parse(EvaluateConfig, ["env=math"], command="rl.eval", presets=PRESETS)
    assert str(tasks_to_play(made)) == "512 of 1024 test tasks"
    made = parse(EvaluateConfig, ["env=math", "tasks=5000"], command="rl.eval", presets=PRESETS)
    assert str(tasks_to_play(made)) == "1024 of 1024 test tasks"
    made = parse(EvaluateConfig, ["env=math", "split=all"], command="rl.eval", presets=PRESETS)
    with pytest.raises(UsageError, match=r"split \('all'\) is for rows of a data set"):
        tasks_to_play(made)


def test_rows_that_cannot_be_tasks_are_counted(tmp_path):
    path = tmp_path / "musique.jsonl"
    rows = [{"question": f"{i}?", "answer": "a", "answerable": i % 2 == 0} for i in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["env=search-qa", f"env.tasks={path}"]
    made = parse(EvaluateConfig, words, command="rl.eval", presets=PRESETS)
    assert str(tasks_to_play(made)).startswith("5 of 10 rows") and tasks_to_play(made).tasks == 5
    assert str(tasks_to_play(made)).endswith("; 5 cannot be tasks")


def test_an_evaluation_of_a_mixture_says_whose_rows_a_hash_chose(tmp_path):
    rows = benchmark(tmp_path)
    of = f'env.of=math(tasks="{rows}") + mastermind'
    words = ["env=mix", of, "split=held-out"]
    made = parse(EvaluateConfig, words, command="rl.eval", presets=PRESETS)
    said = f'(rows of math(tasks="{rows}") name no split: a hash chose; split=test plays all rows)'
    assert str(tasks_to_play(made)).endswith(said)
    made = parse(EvaluateConfig, ["env=mix"], command="rl.eval", presets=PRESETS)
    assert str(tasks_to_play(made)).endswith(" test tasks")


def test_a_mixture_plays_every_row_of_parts_whose_rows_name_no_split(tmp_path):
    path = benchmark(tmp_path, 50)
    of = f'env.of=math(tasks="{path}") + knights-knaves'

    def played(*words):
        made = parse(EvaluateConfig, ["env=mix", of, *words], command="rl.eval", presets=PRESETS)
        return tasks_to_play(made)

    whole = played()
    assert (whole.split, whole.tasks, whole.of) == ("all", 99, 99)
    assert str(whole) == (
        f'99 of 99 tasks: 50 rows (none names a split) of math(tasks="{path}"), '
        "49 test tasks of knights-knaves"
    )
    assert str(played("tasks=10")).startswith("10 of 99 tasks: 5 rows (none names a split) of math")
    hashed = played("split=held-out")
    assert hashed.split == "test" and hashed.of < 40
    generated = parse(EvaluateConfig, ["env=mix"], command="rl.eval", presets=PRESETS)
    assert tasks_to_play(generated).split == "test"
