"""SQuAD's normaliser, exact match and F1, on values of the official scripts and of ReSearch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.answers import (
    cover_match,
    exact_match,
    f1,
    jaccard,
    normalize_answer,
    searcher_normalize,
)


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


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The well-known U.S._band", "well known u s band"),
        ("it’s an `apple`", "it s apple"),
        ("True", "yes"),
        ("False", "no"),
        ("true", "true"),
        ("", ""),
    ],
)
def test_r1_searchers_normaliser(text, normal):
    assert searcher_normalize(text) == normal


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("Barack Obama", "Barack Hussein Obama II", 2 / 3),
        ("the Obama", "Obama", 1.0),
        ("True", "yes", 1.0),
        ("no", "yes", 0.0),
        ("well known", "well-known", 1.0),
    ],
)
def test_f1_with_r1_searchers_normaliser(prediction, gold, score):
    assert f1(prediction, [gold], searcher_normalize) == pytest.approx(score)


def test_a_normaliser_decides_what_is_exact():
    assert exact_match("well known", ["well-known"]) == 0.0
    assert exact_match("well known", ["well-known"], searcher_normalize) == 1.0


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("president Obama Barack", ["Barack Obama"], 1.0),
        ("Obama", ["Barack Obama"], 0.0),
        ("Obama", ["Barack Obama", "obama!"], 1.0),
        ("Obamas", ["Obama"], 0.0),
        ("", ["Obama"], 0.0),
        ("anything", ["the"], 0.0),
        ("", [""], 0.0),
        ("Zürich 東京", ["zürich"], 1.0),
    ],
)
def test_cover_match(prediction, golds, score):
    assert cover_match(prediction, golds) == score


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("the cat sat", ["the cat ran away"], 0.4),
        ("The cat, the cat!", ["cat the"], 1.0),
        ("a b", ["c", "b"], 0.5),
        ("", ["c"], 0.0),
        ("", [""], 0.0),
    ],
)
def test_jaccard(prediction, golds, score):
    assert jaccard(prediction, golds) == pytest.approx(score)
