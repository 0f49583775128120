"""Rewards for answers in a box, against the papers' own figures."""

from __future__ import annotations

import pytest

from envs.rewards import Transcript, make_rubric
from envs.rewards.format import last_boxed
from envs.rewards.mathematics import MATH_REWARDS
from envs.rewards.thinking import one_think_end, tag_count, think_answer_format

TAGGED = "<think>\nhm\n</think>\n<answer>\n\\boxed{7}\n</answer>"


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{ \frac{1}{\sqrt{2}} }", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1} \boxed{2} and", "2"),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed 7", "7"),
        (r"$\boxed {7}$.", "7"),
        (r"so \boxed -12.", "-12"),
        (r"\boxed\frac{1}{\sqrt{2}} then", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed A.", "A"),
        (r"\fbox{7}", "7"),
        (r"\boxed{3} with \boxed as a command", "3"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        ("7", None),
    ],
)
def test_the_last_box(text, box):
    assert last_boxed(text) == box


@pytest.mark.parametrize(
    ("text", "think_answer", "tags", "one_end"),
    [
        (TAGGED, 1, 1, 1),
        (TAGGED + "\n", 0, 1, 1),
        ("so " + TAGGED, 0, 1, 1),
        (TAGGED.replace("\n", " "), 0, 0, 0),
        (TAGGED.replace("<answer>", "", 1), 0, 0.75, 1),
        (TAGGED + "\n" + TAGGED, 0, 0, 0),
        ("<think>\n\n</think>\n<answer>\n\n</answer>", 1, 1, 1),
        ("", 0, 0, 0),
    ],
)
def test_formats(text, think_answer, tags, one_end):
    assert think_answer_format(text) == think_answer
    assert tag_count(text) == tags
    assert one_think_end(text) == one_end


def paid(name: str, correct: bool, text: str) -> dict[str, float]:
    rubric = make_rubric(MATH_REWARDS[name].rubric)
    return rubric(Transcript(text=text, written=text, correct=float(correct)))


def test_r1_zero_pays_two_one_one_and_nothing():
    totals = [
        sum(paid("r1-zero", right, text).values())
        for text in (TAGGED, "7")
        for right in (True, False)
    ]
    assert totals == [2.0, 1.0, 1.0, 0.0]


def test_open_rs_weighs_two_to_one():
    assert paid("open-rs", True, TAGGED) == {"accuracy": 2.0, "one_think_end": 1.0}
    assert paid("open-rs", True, "7") == {"accuracy": 2.0, "one_think_end": 0.0}
    assert paid("open-rs", False, TAGGED) == {"accuracy": 0.0, "one_think_end": 1.0}
    assert make_rubric(MATH_REWARDS["open-rs"].rubric).reward_range == (0.0, 3.0)


def test_orz_and_accuracy_pay_nothing_for_a_format():
    for name in ("orz", "accuracy"):
        assert paid(name, True, "7") == {"accuracy": 1.0}
        assert paid(name, False, TAGGED) == {"accuracy": 0.0}
    assert MATH_REWARDS["orz"].find_answer(TAGGED) == "7"
    assert MATH_REWARDS["orz"].find_answer(r"\boxed{7}") is None
    assert MATH_REWARDS["accuracy"].find_answer(r"\boxed{7}") == "7"
