"""Rows of GSM8K and MATH as problems."""

from __future__ import annotations

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from envs.datasets import load_rows
from envs.math.rows import load_problems, problems_from
from envs.math.task import MathTask


def tasks(*rows, split="test"):
    return problems_from(load_rows([{"split": "test", **row} for row in rows])).split(split)


def test_the_gold_answer_of_each_layout():
    assert tasks(
        {"question": "a?", "answer": "so\n#### 7"},
        {"question": "b?", "answer": "1 #### 2\n#### 1,234,567"},
        {"question": "c?", "answer": "#### -3.50"},
        {"problem": "d", "solution": r"First \boxed{1}, then $\boxed{\frac{1}{\sqrt{2}}}$."},
        {"problem": "e", "solution": r"\boxed{1}", "answer": " (1,234) "},
    ) == [
        MathTask("a?", "7", "row 1"),
        MathTask("b?", "1234567", "row 2"),
        MathTask("c?", "-3.50", "row 3"),
        MathTask("d", r"\frac{1}{\sqrt{2}}", "row 4"),
        MathTask("e", "(1,234)", "row 5"),
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"question": "q", "answer": "7"},
            "row 1, column answer: expected the answer behind '####'",
        ),
        ({"question": "q", "answer": "####  "}, "row 1, column answer: expected the answer behind"),
        ({"question": "q", "answer": 7}, "row 1, column answer: expected a text, got 7"),
        ({"question": " ", "answer": "#### 7"}, "row 1, column question: expected a text"),
        ({"problem": "p", "solution": "7"}, r"row 1, column solution: no \\boxed"),
        ({"problem": "p", "solution": r"\boxed{ }"}, r"row 1, column solution: no \\boxed"),
        ({"problem": "p", "answer": ""}, "row 1, column answer: expected a text"),
        ({"prompt": "p"}, "row 1: columns split, prompt are neither GSM8K's"),
    ],
)
def test_a_broken_row_is_named(row, says):
    with pytest.raises(ValueError, match=says):
        tasks(row)


def test_files_of_every_kind(tmp_path):
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(tmp_path / "gz-test.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t-test.parquet")
    for name in ("test.jsonl", "gz-test.jsonl.gz", "t-test.parquet"):
        found = load_problems(str(tmp_path / name)).split("test")
        assert [task.answer for task in found] == ["0", "1", "2"]
        assert name in found[1].where and found[1].where.endswith(" 2")
    with pytest.raises(
        ValueError, match=r"no rows in split 'train'; it has \{'test': 3\}: say it in"
    ):
        load_problems(str(tmp_path / "test.jsonl")).split("train")


def test_rows_without_a_split_get_one_by_their_question():
    rows = load_rows([{"question": f"{i}?", "answer": "#### 1"} for i in range(300)])
    found = problems_from(rows).splits
    assert sum(map(len, found.values())) == 300
    assert all(len(part) >= 15 for part in found.values())
