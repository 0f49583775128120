"""Combinators: contributions add up, stay in the declared range, and spam at or below the floor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import Gate, Reward, Rubric, Sequential, Transcript, WeightedSum

NOTHING = Transcript(text="", written="")


def worth(name: str, value: float, low: float = 0.0, high: float = 1.0, floor: float = 0.0):
    return Reward(name, lambda _: value, (low, high), floor)


def test_a_weighted_sum_keeps_its_parts_apart():
    rubric = WeightedSum([(2.0, worth("a", 0.5)), (-0.1, worth("b", 1.0, 0.0, 3.0, floor=2.0))])
    assert rubric(NOTHING) == {"a": 1.0, "b": pytest.approx(-0.1)}
    assert rubric.total(NOTHING) == pytest.approx(0.9)
    assert rubric.reward_range == pytest.approx((-0.3, 2.0))
    assert rubric.reward_floor == 0.0, "a cost is least where nothing is earned"
    assert WeightedSum([(0.5, worth("a", 0, floor=0.4))]).reward_floor == 0.2


@pytest.mark.parametrize(
    ("value", "contributions"), [(0.5, {"a": 0.5}), (0.49, {"a": 0.0}), (1.0, {"a": 1.0})]
)
def test_a_gate_pays_from_its_threshold_on(value, contributions):
    assert Gate(worth("a", value), at_least=0.5)(NOTHING) == contributions


def test_a_gate_looks_at_the_sum_and_shuts_every_contribution():
    both = WeightedSum([(1.0, worth("a", 0.4)), (1.0, worth("b", 0.4))])
    assert Gate(both, at_least=0.8)(NOTHING) == {"a": 0.4, "b": 0.4}
    assert Gate(both, at_least=0.9)(NOTHING) == {"a": 0.0, "b": 0.0}


def test_a_gates_range_and_floor():
    costly = worth("a", 0.0, -1.0, 1.0, floor=0.3)
    assert Gate(costly, at_least=0.5).reward_range == (0.0, 1.0)
    assert Gate(costly, at_least=0.5).reward_floor == 0.0
    assert Gate(costly, at_least=-0.5).reward_range == (-0.5, 1.0)
    assert Gate(costly, at_least=0.2).reward_floor == 0.3
    assert Gate(costly, at_least=2.0).reward_range == (0.0, 0.0)


def test_a_sequence_asks_no_further_than_the_first_that_earns_nothing():
    asked = []

    def asking(name: str, value: float) -> Reward:
        return Reward(name, lambda _: asked.append(name) or value)

    passing = Sequential(asking("a", 0.1), asking("b", 1.0), asking("c", 0.7))
    assert passing(NOTHING) == {"c": 0.7}
    assert asked == ["a", "b", "c"]
    asked.clear()
    failing = Sequential(asking("a", 0.1), asking("b", 0.0), asking("c", 0.7))
    assert failing(NOTHING) == {"c": 0.0}
    assert asked == ["a", "b"]
    costing = Sequential(worth("a", -0.5, low=-1.0), worth("b", 1.0))
    assert costing(NOTHING) == {"b": 0.0}, "less than nothing is nothing as well"


def test_a_sequences_range_and_floor():
    tags = worth("tags", 1.0, floor=1.0)
    answer = worth("answer", 1.0, 0.2, 2.0, floor=0.2)
    assert Sequential(tags, answer).reward_range == (0.0, 2.0)
    assert Sequential(tags, answer).reward_floor == 0.2
    assert Sequential(worth("right", 1.0), answer).reward_floor == 0.0
    assert Sequential(tags, worth("right", 1.0), answer).reward_floor == 0.0
    assert Sequential(answer).reward_range == (0.2, 2.0)


RUBRICS = st.deferred(lambda: LEAVES | SUMS | GATES | SEQUENCES)
NUMBERS = st.floats(-2, 2).map(lambda x: round(x, 3))
LEAVES = st.builds(
    lambda name, numbers: worth(name, numbers[1], numbers[0], numbers[2], numbers[1]),
    st.uuids().map(str),
    st.tuples(NUMBERS, NUMBERS, NUMBERS).map(sorted),
)
SUMS = st.lists(st.tuples(NUMBERS, RUBRICS), min_size=1, max_size=3).map(WeightedSum)
GATES = st.builds(Gate, RUBRICS, NUMBERS)
SEQUENCES = st.lists(RUBRICS, min_size=1, max_size=3).map(lambda parts: Sequential(*parts))


@given(RUBRICS)
def test_whatever_is_combined_stays_in_range_and_at_most_the_floor(rubric: Rubric):
    """Each leaf is worth exactly its floor here, as for a text that spams."""
    given_ = rubric(NOTHING)
    assert tuple(given_) == rubric.names
    total, (low, high) = rubric.total(NOTHING), rubric.reward_range
    assert low - 1e-6 <= total <= high + 1e-6
    assert total <= rubric.reward_floor + 1e-6


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, math.inf])
def test_a_score_outside_its_range_is_a_bug_and_named(value):
    with pytest.raises(ValueError, match=r"reward 'odd' gave .*, outside its range 0\.\.1"):
        worth("odd", value)(NOTHING)


def test_what_cannot_be_combined():
    a = worth("a", 1.0)
    with pytest.raises(ValueError, match="two contributions are called 'a'"):
        WeightedSum([(1.0, a), (0.5, Gate(a))])
    with pytest.raises(ValueError, match="at least one"):
        WeightedSum([])
    with pytest.raises(ValueError, match="at least one"):
        Sequential()
    with pytest.raises(ValueError, match="must be finite"):
        WeightedSum([(math.inf, a)])
    with pytest.raises(ValueError, match="must rise"):
        worth("a", 0.0, 1.0, 0.0)
