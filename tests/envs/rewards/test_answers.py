"""SQuAD's normaliser, exact match and F1, on values of the official scripts and of ReSearch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.answers import exact_match, f1, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles!", "beatles"),
        ("  An   apple a day ", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre and another", "theatre and another"),
        ("the", ""),
        ("well-known", "wellknown"),
    ],
)
def test_normaliser(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("Barack Obama", ["Barack Obama"], 1.0),
        ("Barack Obama", ["Obama"], 2 / 3),
        ("Barack Obama", ["Barack Hussein Obama II"], 2 / 3),
        ("Barack Obama", ["Bush", "Obama"], 2 / 3),
        ("Barack Obama", ["Bush"], 0.0),
        ("the Obama", ["Obama"], 1.0),
        ("yes", ["no"], 0.0),
        ("yes", ["yes it is"], 0.0),
        ("yes it is", ["yes"], 0.0),
        ("Yes.", ["yes"], 1.0),
        ("a b b", ["b b b"], 2 * 2 / (2 + 3)),
        ("", ["x"], 0.0),
        ("the", ["the"], 0.0),
    ],
)
def test_f1(prediction, golds, score):
    assert f1(prediction, golds) == pytest.approx(score)


def test_exact_match_takes_any_gold():
    assert exact_match("The Eiffel-Tower", ["Louvre", "eiffeltower"]) == 1.0
    assert exact_match("Eiffel", ["Eiffel Tower"]) == 0.0


@given(st.text("ab c.", max_size=9), st.text("ab c.", max_size=9))
def test_f1_is_symmetric_and_one_only_for_the_same_words(left, right):
    assert f1(left, [right]) == f1(right, [left])
    same = sorted(normalize_answer(left).split()) == sorted(normalize_answer(right).split())
    assert (f1(left, [right]) == 1.0) == (same and normalize_answer(left) != "")
