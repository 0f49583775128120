"""Judgements from the probabilities of words, with a judge of known ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.judges.chooser import normalised, prefixes
from envs.judges.verdicts import agreement, ahead, expected_grade, grades, prefer

GRADES = st.lists(st.floats(0.01, 1.0), min_size=10, max_size=10).map(normalised)


class Judge:
    """Gives the probabilities that a function of what it reads has for it."""

    def __init__(self, decide):
        self.decide = decide
        self.asked = []

    async def __call__(self, messages, options):
        rules, data = messages
        assert (rules["role"], data["role"]) == ("system", "user")
        self.asked.append((rules["content"], json.loads(data["content"]), list(options)))
        return self.decide(self.asked[-1][1])


async def test_both_orders_are_averaged():
    # "1" has 0.7 for (A, B), and 0.4 for (B, A), where it stands for B: (0.7 + 0.6) / 2.
    judge = Judge(lambda data: [0.7, 0.3] if data["answer_1"] == "A" else [0.4, 0.6])
    preference = await prefer(judge, "Why?", ("A", "B"), "Be brief.")
    assert preference.probability == pytest.approx(0.65)
    assert preference.bias == pytest.approx(0.1)
    assert preference.consistent
    rules, data, options = judge.asked[1]
    assert "Be brief." in rules and "one digit" in rules
    assert data == {"request": "Why?", "answer_1": "B", "answer_2": "A"}
    assert options == ["1", "2"]


async def test_a_judge_of_places_alone_prefers_nothing():
    preference = await prefer(Judge(lambda data: [0.9, 0.1]), "Why?", ("A", "B"))
    assert preference.probability == pytest.approx(0.5)
    assert preference.bias == pytest.approx(0.8)
    assert not preference.consistent


@given(st.floats(0, 1), st.floats(0, 1))
async def test_swapped_answers_are_preferred_with_the_rest(one, two):
    judge = Judge(lambda data: [one, 1 - one] if data["answer_1"] == "A" else [two, 1 - two])
    forth = await prefer(judge, "", ("A", "B"))
    back = await prefer(judge, "", ("B", "A"))
    assert forth.probability == pytest.approx(1 - back.probability)
    assert forth.bias == pytest.approx(back.bias)
    assert forth.consistent == back.consistent


async def test_an_expected_grade_is_scaled_to_one():
    probabilities = [0.0] * 5 + [0.2, 0.5, 0.3] + [0.0] * 2
    judge = Judge(lambda data: probabilities)
    found = await grades(judge, "Why?", "So.")
    # 6 x 0.2 + 7 x 0.5 + 8 x 0.3 = 7.1, and 2 (7.1 - 1) / 9 - 1.
    assert expected_grade(found) == pytest.approx(0.3555556, abs=1e-7)
    rules, data, options = judge.asked[0]
    assert data == {"request": "Why?", "answer": "So."}
    assert options == [str(n) for n in range(1, 11)]
    assert "to 10, very good" in rules
    assert expected_grade([1.0] + [0.0] * 9) == -1
    assert expected_grade([0.0] * 4 + [1.0]) == 1


def test_one_grade_ahead_of_another():
    assert ahead([0.0, 1.0], [1.0, 0.0]) == 1
    assert ahead([0.5, 0.5], [0.5, 0.5]) == pytest.approx(0.5)
    # Above: 0.6 x 0.2; equal: 0.4 x 0.2 + 0.6 x 0.8.
    assert ahead([0.4, 0.6], [0.2, 0.8]) == pytest.approx(0.12 + 0.56 / 2)


@given(GRADES, GRADES)
def test_being_ahead_adds_up_to_one(one, other):
    assert ahead(one, other) + ahead(other, one) == pytest.approx(1)
    brute = sum(
        p * q * (1.0 if i > j else 0.5 if i == j else 0.0)
        for i, p in enumerate(one)
        for j, q in enumerate(other)
    )
    assert ahead(one, other) == pytest.approx(brute)


async def test_agreement_with_a_reference_is_the_probability_of_yes():
    judge = Judge(lambda data: [0.9, 0.1])
    assert await agreement(judge, "Why?", "a flood", "water") == pytest.approx(0.9)
    rules, data, options = judge.asked[0]
    assert data == {"question": "Why?", "reference_answer": "a flood", "final_answer": "water"}
    assert "YES or NO" in rules
    assert options == ["YES", "NO"]


def test_options_that_begin_with_others():
    assert prefixes(["1", "2", "10", "12"]) == [("10", "1"), ("12", "1")]
    assert prefixes(["YES", "NO"]) == []
