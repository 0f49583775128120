"""Rows of GSM8K and MATH as problems."""

from __future__ import annotations

import gzip
import json
import pickle

import pyarrow
import pyarrow.parquet
import pytest

import envs
from envs.datasets import load_rows
from envs.math.gold_answers import is_doubtful
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
        {"problem": "f", "answer": 1.5},
        {"question": "g", "context": "a chapter", "answer": "8"},
    ) == [
        MathTask("a?", "7", "row 1"),
        MathTask("b?", "1234567", "row 2"),
        MathTask("c?", "-3.50", "row 3"),
        MathTask("d", r"\frac{1}{\sqrt{2}}", "row 4"),
        MathTask("e", "(1,234)", "row 5"),
        MathTask("f", "1.5", "row 6"),
        MathTask("g", "8", "row 7"),
    ]


def say(content):
    return [{"role": "user", "content": content}]


LAYOUTS = {
    "gsm8k": ({"question": "q", "answer": "9 * 2\n#### 1,018"}, "1018"),
    "math": ({"problem": "q", "level": "Level 5", "solution": r"so $\boxed{\frac{1}{2}}$"}, None),
    "math-500": ({"problem": "q", "solution": r"\boxed{1}", "answer": r"\frac{1}{2}"}, None),
    "aime-2024-hugging-face": ({"id": 60, "problem": "q", "solution": "s", "answer": "204"}, "204"),
    "aime-2024-maxwell-jia": ({"ID": "x", "Problem": "q", "Solution": "s", "Answer": 204}, "204"),
    "aime-2025-opencompass": ({"question": "q", "answer": "70"}, "70"),
    "amc-aimo": ({"id": 0, "problem": "q", "answer": 142.0, "url": "u"}, "142"),
    "minerva": ({"problem": "q", "answer": "$1.5e-3$"}, "1.5e-3"),
    "olympiad-bench": (
        {
            **{"question": "q", "solution": ["long"], "final_answer": [r"$\frac{1}{2}$"]},
            **{"context": None, "is_multiple_answer": False, "error": None},
        },
        None,
    ),
    "deep-math-trl": ({"prompt": say("q"), "solution": r"$\frac{1}{2}$"}, None),
    "deep-math": ({"question": "q", "final_answer": "0", "r1_solution_1": "long"}, "0"),
    "open-reasoner-zero": (
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "assistant", "ground_truth": {"value": "2400"}},
            ]
        },
        "2400",
    ),
    "simple-rl": (
        {
            **{"input": "<|im_start|>q", "answer": "a long one", "gt_answer": "8", "level": 3},
            **{"question": "q", "ground_truth_answer": "8", "target": "8"},
        },
        "8",
    ),
    "deep-scale-r": ({"problem": "q", "answer": "-3", "solution": "s"}, "-3"),
    "big-math": ({"problem": "q", "answer": "12", "llama8b_solve_rate": 0.1}, "12"),
    "open-math": ({"problem": "q", "generated_solution": "s", "expected_answer": "5"}, "5"),
    "limo": ({"question": "q", "solution": r"\boxed{1}", "answer": "5"}, "5"),
    "svamp": ({"Body": "", "Question": "q", "Equation": "( 8.0 - 2.0 )", "Answer": 6.0}, "6"),
    "dapo": (
        {
            "prompt": say("q"),
            "reward_model": {"ground_truth": "34", "style": "rule"},
            "extra_info": {"index": "1"},
        },
        "34",
    ),
    "skywork": (
        {"prompt": say("q"), "reward_model": {"ground_truth": '["108"]', "style": "rule"}},
        "108",
    ),
    "omni-math": ({"domain": ["Algebra"], "problem": "q", "solution": "s", "answer": "7"}, "7"),
    "hmmt": ({"problem_idx": 1, "problem": "q", "answer": "103", "problem_type": ["N"]}, "103"),
}


@pytest.mark.parametrize(("row", "gold"), LAYOUTS.values(), ids=list(LAYOUTS))
def test_published_layouts(row, gold):
    [task] = tasks(row)
    assert (task.question, task.answer) == ("q", gold or r"\frac{1}{2}")


CHOICES = {
    "mmlu": ({"question": "q", "choices": ["x", "y", "z"], "answer": 1}, "B"),
    "mmlu-pro": ({"question": "q", "options": ["x", "y", "z"], "answer": "B"}, "B"),
    "aqua": ({"question": "q", "options": ["A)x", "B)y", "C)z"], "correct": "B"}, "B"),
    "arc": (
        {
            "question": "q",
            "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
        "B",
    ),
    "med-qa": ({"question": "q", "options": {"A": "x", "B": "y", "C": "z"}, "answer": "y"}, "B"),
}


@pytest.mark.parametrize(("row", "letter"), CHOICES.values(), ids=list(CHOICES))
def test_multiple_choice(row, letter):
    [task] = tasks(row)
    assert (task.question, task.answer) == ("q\nA. x\nB. y\nC. z", letter)


def test_options_without_an_order_get_one():
    row = {"Question": "q", "Correct Answer": "y", "Incorrect Answer 1": "x"}
    row |= {"Incorrect Answer 2": "z", "Incorrect Answer 3": "w"}
    letters = set()
    for i in range(40):
        [task] = tasks({**row, "Question": f"q{i}"})
        assert f"\n{task.answer}. y" in task.question
        letters.add(task.answer)
    assert letters == set("ABCD")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "q", "choices": ["x"], "answer": 0}, "column choices: expected options"),
        ({"question": "q", "choices": ["x", "y"], "answer": 2}, "column answer: expected one of A"),
        ({"question": "q", "choices": ["x", "y"]}, "row 1: options without an answer"),
        ({"question": "q", "answer": "####  "}, "row 1, column answer: expected the answer behind"),
        ({"question": "q", "answer": True}, "row 1, column answer: expected an answer, got True"),
        ({"question": "q", "answer": []}, "row 1, column answer: expected an answer"),
        ({"question": " ", "answer": "#### 7"}, "row 1, column question: expected a text"),
        ({"question": "q", "solution": "So we see that x is 7."}, "row 1, column solution: exp"),
        ({"problem": "p", "solution": r"\boxed{ }"}, "row 1, column solution: no answer in its"),
        ({"problem": "p", "answer": ""}, "row 1, column answer: expected an answer, got ''"),
        ({"conversations": [{"from": "human", "value": "q"}]}, "row 1: expected a conversation in"),
    ],
)
def test_a_broken_row_is_named(row, says):
    with pytest.raises(ValueError, match=says):
        tasks(row)


@pytest.mark.parametrize("row", [{"prompt": "p"}, {"frage": "q", "antwort": "7"}, {}])
def test_an_unknown_layout_is_one_line_with_the_way_out(row):
    with pytest.raises(ValueError) as refused:
        tasks(row)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"row 1: columns {', '.join(row) or 'none'} are of no known layout")
    assert "expected a question (question, problem," in message
    assert message.endswith('name yours by env.columns="question=COLUMN answer=COLUMN"')


def test_rows_without_an_answer_are_left_out_and_counted(caplog):
    proof = {"problem": "p", "solution": "Let us assume that n is even. Then it is done."}
    rows = [
        proof,
        {"problem": "q", "solution": r"\boxed{7}"},
        {"problem": "r", "answer": "7\nor 8"},
    ]
    data = problems_from(load_rows(rows))
    assert [task.answer for task in data.tasks] == ["7"]
    assert data.num_rows == 3
    assert not caplog.messages, "the rows of a split are reported where the split is used"
    data.split("all")
    data.split("all")
    [said] = caplog.messages
    assert said.startswith("rows: 2 of 3 rows are left out, because they cannot be tasks")


NO_ANSWERS = [
    *("proof", "notfound", "Proof.", r"\text{proof}", "not found", "N/A", "n/a", "NaN", "null"),
    *("None", "", "  ", None, float("nan"), [], [""], [None], r"\boxed{proof}", "#### N/A", "####"),
]


@pytest.mark.parametrize("empty", NO_ANSWERS, ids=repr)
@pytest.mark.parametrize(
    "row",
    [
        lambda gold: {"problem": "p", "answer": gold, "problem_type": "Algebra"},
        lambda gold: {"prompt": say("p"), "reward_model": {"ground_truth": gold}},
        lambda gold: {
            "conversations": [{"from": "human", "value": "p"}, {"ground_truth": {"value": gold}}]
        },
    ],
    ids=["columns", "verl", "conversation"],
)
def test_a_row_that_marks_no_answer_is_left_out(empty, row, caplog):
    data = problems_from(load_rows([row("7"), row(empty), row("8")]), f"{row} {empty}")
    assert [task.answer for task in data.split("all")] == ["7", "8"]
    assert data.num_rows == 3
    [said] = caplog.messages
    assert "1 of 3 rows are left out, because they cannot be tasks (the first: row 2" in said


@pytest.mark.parametrize("label", ["", None, -1, "-1"])
def test_a_choice_without_an_answer_is_left_out(label):
    row = {"question": "q", "options": ["x", "y"]}
    data = problems_from(load_rows([{**row, "label": 1}, {**row, "label": label}]))
    assert [task.answer for task in data.tasks] == ["B"]
    assert data.num_rows == 2


def test_an_empty_column_gives_way_to_the_next():
    row = {"problem": "p", "answer": "", "solution": r"so \boxed{7}"}
    assert [task.answer for task in tasks(row)] == ["7"]


def test_gold_answers_that_cannot_be_verified_are_found_at_load(caplog):
    golds = [r"0.\overline{x}", "7", r"\frac{1}{0}", r"\frac{3}{", r"\frac{\pi}{3}", r"\angle ABC"]
    golds += [r"10^{-2}\%", r"A \cup B", r"\{x | x > 2\}"]
    rows = [{"problem": f"p{i}", "answer": gold} for i, gold in enumerate(golds)]
    data = problems_from(load_rows(rows))
    wanted = ["7", r"\frac{\pi}{3}", r"\angle ABC", r"\{x | x > 2\}"]
    assert [task.answer for task in data.tasks] == wanted
    assert data.num_rows == 9
    data.split("all")
    [said] = caplog.messages
    assert said.startswith("rows: 5 of 9 rows are left out, because they cannot be tasks")
    assert r"row 1: math-verify cannot read the gold answer '0.\\overline{x}'" in said


def test_rows_that_are_left_out_are_reported_with_their_own_split_only(caplog):
    rows = [{"problem": f"p{i}", "answer": "7", "split": "train"} for i in range(20)]
    rows += [{"problem": f"t{i}", "answer": "7", "split": "test"} for i in range(3)]
    rows[4]["answer"] = r"0.\overline{x}"
    data = problems_from(load_rows(rows), "of the train split")
    assert len(data.split("test")) == 3
    assert not caplog.messages
    assert len(data.split("train")) + len(data.split("validation")) == 19
    assert "of the train split: 1 of" in caplog.messages[0]
    assert "train rows are left out" in caplog.messages[0]


def test_only_doubtful_gold_answers_cost_a_process(monkeypatch):
    monkeypatch.setattr("envs.math.gold_answers.MathVerifier", None)
    golds = ["7", "-3.5", r"\frac{1}{2}", r"\frac{\pi}{3}", r"3\sqrt{2}", "(1, 2)", "x^2 + 1", "B"]
    golds += [r"\text{Evelyn}", r"[0,1] \cup (2, \infty)", r"90^\circ", "10\\%", "Yes"]
    rows = [{"problem": f"p{i}", "answer": gold} for i, gold in enumerate(golds)]
    assert len(problems_from(load_rows(rows)).tasks) == len(golds)


@pytest.mark.parametrize(
    "gold",
    [
        r"0.\overline{3}",
        r"0.\dot{3}",
        "x^2+",
        "-",
        "1/0",
        "()",
        "2^2^2^2^x",
        "x+" * 100 + "y",
    ],
)
def test_what_math_verify_cannot_read_is_doubtful(gold):
    assert is_doubtful(gold)


def test_columns_are_named_by_the_user():
    rows = [{"frage": "q", "info": {"loesung": 7}, "answer": "other", "split": "test"}]
    env = envs.make("math", tasks=rows, columns="question=frage answer=info.loesung", split="test")
    assert env.tasks == [MathTask("q", "7", "row 1")]
    for columns, says in (
        ("question=frage answer=nowhere", "row 1: no column 'nowhere', which columns names as"),
        ("question", "must be such as question=problem answer=solution"),
        ('question="frage', "No closing quotation"),
    ):
        with pytest.raises(ValueError, match=says):
            envs.make("math", tasks=rows, columns=columns, split="test")
    with pytest.raises(
        ValueError, match=r"columns \(question=q\) is for rows: tasks is 'generated'"
    ):
        envs.make("math", columns="question=q")


def test_a_list_of_rows_plays_and_pickles():
    rows = [{"question": f"{i}?", "answer": i} for i in range(5)]
    env = envs.make("math", tasks=rows, split="all")
    copy = pickle.loads(pickle.dumps(env))
    for one in (env, copy):
        question, _ = one.reset(options={"task": 3})
        assert (question, one.step(r"\boxed{3}").reward) == ("3?", 1.0)
    with pytest.raises(ValueError, match="tasks must be a text, or rows of plain values"):
        envs.make("math", tasks=[{"question": object()}])


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
        ValueError, match=r"no rows in split 'train'; it has \{'test': 3\}: name the split in"
    ):
        load_problems(str(tmp_path / "test.jsonl")).split("train")


def test_rows_without_a_split_get_one_by_their_question():
    rows = load_rows([{"question": f"{i}?", "answer": "#### 1"} for i in range(300)])
    found = problems_from(rows).splits
    assert sum(map(len, found.values())) == 300
    assert all(len(part) >= 15 for part in found.values())


@pytest.mark.parametrize(
    ("action", "right"),
    [
        (r"\boxed{B}", 1),
        (r"\boxed{(b)}", 1),
        (r"\boxed{B. Paris}", 1),
        (r"\boxed{\textbf{(B)}\ Paris}", 1),
        (r"\boxed{\text{Paris}}", 1),
        (r"\boxed{paris.}", 1),
        (r"\boxed{\text{Oslo}}", 0),
        (r"\boxed{A. Paris}", 0),
        (r"\boxed{\text{Paris or Oslo}}", 0),
        (r"\boxed{B. or C.}", 0),
        (r"\boxed{Pari}", 0),
    ],
)
def test_an_option_is_named_by_its_letter_or_its_text(action, right):
    row = {"question": "Capital?", "choices": ["Rome", "Paris", "Oslo"], "answer": "B"}
    env = envs.make("math", tasks=[row], split="all")
    env.reset(options={"task": 0})
    assert env.step(action).reward == right
    env.close()
