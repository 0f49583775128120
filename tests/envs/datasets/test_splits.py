"""Which rows are for training, validation and testing."""

import json
import logging

import pytest

import envs
from envs.datasets import Row
from envs.datasets.splits import arrange, split_of
from envs.reference.rows import questions_from as reference_rows
from envs.search.rows import questions_from as search_rows

SPLITS = ("train", "validation", "test")


def rows(split, count, start=0):
    return [
        (Row(f"row {i}", {"split": split} if split else {}), f"{split} {i}", f"{split} {i}")
        for i in range(start, start + count)
    ]


def test_splits_by_hash_are_about_eight_to_one_to_one():
    splits = [split_of(Row("here", {}), str(i)) for i in range(2000)]
    assert [splits.count(s) / 2000 for s in ("train", "validation", "test")] == pytest.approx(
        [0.8, 0.1, 0.1], abs=0.03
    )
    assert split_of(Row("here", {"split": "test"}), "1") == "test"
    with pytest.raises(ValueError, match=r"here: split \('dev'\) must be one of train"):
        split_of(Row("here", {"split": "dev"}), "1")


def test_train_rows_without_a_validation_split_give_it_a_tenth(caplog):
    found = rows("train", 2000) + rows("test", 100)
    data = arrange(found, "here")
    counts = {split: len(tasks) for split, tasks in data.splits.items()}
    assert counts["test"] == 100 and counts["train"] + counts["validation"] == 2000
    assert counts["validation"] == pytest.approx(200, abs=40)
    assert data.splits["train"] + data.splits["validation"] + data.splits["test"] != data.tasks
    assert sorted(data.tasks) == sorted(task for s in SPLITS for task in data.split(s))
    assert data.split("all") == [task for _, _, task in found]
    assert data.carved == (counts["validation"], 2000)
    [said] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    moved = counts["validation"]
    assert said.startswith(f"here has no validation split: {moved} of its 2000 train rows")

    by_hash = [key for _, key, _ in found[:2000] if split_of(Row("r", {}), key) == "validation"]
    assert data.split("validation") == by_hash

    again = arrange(found[::-1], "here")
    assert sorted(again.split("validation")) == sorted(data.split("validation"))


def test_a_split_that_nothing_was_taken_from_brings_no_notice(caplog):
    """Of an evaluation it would be wrong; every environment of an episode asks again."""
    data = arrange(rows("train", 300) + rows("test", 10), "elsewhere")
    data.split("test"), data.split("all")
    assert not caplog.records
    for _ in range(3):
        data.split("train")
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "elsewhere has no validation split"
    ]


def test_rows_of_the_same_key_stay_together():
    found = [(Row("r", {"split": "train"}), f"q{i // 2}", i) for i in range(400)]
    data = arrange(found, "here")
    assert not {i // 2 for i in data.split("train")} & {i // 2 for i in data.split("validation")}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_few_train_rows_keep_some_and_give_one(count):
    data = arrange(rows("train", count), "here")
    assert len(data.split("train")) >= 1
    assert len(data.split("validation")) >= 1


def test_rows_that_a_hash_would_all_give_away_keep_some_for_training():
    keys = (f"q{i}" for i in range(1000))
    taken = [key for key in keys if split_of(Row("r", {}), key) == "validation"][:3]
    data = arrange([(Row("r", {"split": "train"}), key, key) for key in taken], "here")
    assert (len(data.split("train")), len(data.split("validation"))) == (2, 1)


def test_rows_that_name_no_split_are_where_the_hash_says(caplog):
    keys = (f"q{i}" for i in range(1000))
    kept = [key for key in keys if split_of(Row("r", {}), key) == "train"][:20]
    data = arrange([(Row("r", {}), key, key) for key in kept], "here")
    assert list(data.splits) == ["train"] and data.split("train") == kept
    assert not caplog.records


def test_one_row_stays_and_own_validation_rows_are_enough(caplog):
    assert list(arrange(rows("train", 1), "here").splits) == ["train"]
    data = arrange(rows("train", 50) + rows("validation", 1), "here")
    assert (len(data.split("train")), len(data.split("validation"))) == (50, 1)
    assert list(arrange(rows("test", 50), "here").splits) == ["test"]
    assert not caplog.records


def test_rows_that_name_no_split_are_said_to_name_none():
    assert not arrange(rows(None, 30), "here").named
    assert arrange(rows("test", 3) + rows(None, 3), "here").named


def test_rows_of_another_split_choose_no_train_rows():
    """A test row whose hash would make it validation is none of the train rows that are taken."""
    keys = [f"k{i}" for i in range(300)]
    of_hash = {split: [k for k in keys if split_of(Row("r", {}), k) == split] for split in SPLITS}
    train = [(Row(k, {"split": "train"}), k, k) for k in of_hash["train"][:20]]
    test = [(Row(k, {"split": "test"}), k, k) for k in of_hash["validation"][:5]]
    data = arrange(train + test, "here")
    assert len(data.split("validation")) == 1
    assert (len(data.split("train")), len(data.split("test"))) == (19, 5)


def dataset_of(tasks, **options):
    kind = envs.env_type("math")
    return kind.dataset(kind.Options(tasks=tasks, **options))


@pytest.mark.parametrize("name", ["rows.parquet", "rows-test.jsonl"])
def test_a_null_is_no_split(tmp_path, name):
    """Without a split, the file's name decides, or else a hash."""
    given = ["train"] * 30 + [None] * 30
    rows = [
        {"question": f"{n} + 1", "answer": n + 1, "split": split} for n, split in enumerate(given)
    ]
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    data = dataset_of(path)
    assert set(data.splits) == set(SPLITS)
    assert data.named and data.carved is not None  # no row names validation
    if "test" in name:
        assert len(data.splits["test"]) == 30


@pytest.mark.parametrize("columns", ["", "question=question answer=answer split=split"])
def test_nulls_alone_name_no_split(columns):
    rows = [{"question": f"{n} + 1", "answer": n + 1, "split": None} for n in range(30)]
    data = dataset_of(rows, columns=columns)
    assert (data.named, data.carved, len(data.tasks)) == (False, None, 30)
    with pytest.raises(ValueError, match=r"split \(''\) must be one of"):
        dataset_of([rows[0] | {"split": ""}])


@pytest.mark.parametrize("empty", [None, "", [], [""], float("nan")], ids=repr)
def test_rows_without_an_answer_are_left_out_of_every_kind_of_question(empty):
    for read, column in ((search_rows, "answer"), (reference_rows, "reference")):
        texts = enumerate(["7", empty])
        data = read([Row(f"row {i}", {"question": f"q{i}", column: text}) for i, text in texts])
        data = getattr(data, "data", data)
        assert (len(data.tasks), data.num_rows) == (1, 2)
        assert data.reasons("all")[0].startswith("row 1")
