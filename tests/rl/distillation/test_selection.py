"""Which samples of a task are kept, which are compared, and conditions on their texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import Transcript
from rl.distillation.selection import Sample, compared, kept, parse_conditions
from tools.registry import UnknownNameError

KIMI = [
    *(Sample(1.0, True, length) for length in (100, 140, 160)),
    *(Sample(0.0, False, length) for length in (90, 120)),
]
SAMPLES = st.lists(
    st.builds(Sample, st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.integers(1, 40)),
    max_size=9,
)


def test_the_rules_on_one_group():
    group = [
        Sample(0.2, False, 5),
        Sample(1.0, True, 30),
        Sample(1.2, True, 20),
        Sample(1.2, True, 20),
        Sample(1.1, False, 9),
    ]
    assert kept(group, "right") == [1, 2, 3]
    assert kept(group, "right", per_task=2) == [1, 2]
    assert kept(group, "best") == [2]
    assert kept(group, "shortest") == [2]


def test_where_none_is_right_only_the_best_is_kept():
    group = [Sample(0.1, False, 5), Sample(0.4, False, 9)]
    assert [kept(group, keep) for keep in ("right", "best", "shortest")] == [[], [1], []]
    assert [kept([], keep) for keep in ("right", "best", "shortest")] == [[], [], []]


def test_long2short_compares_as_kimi_does():
    # The shortest right one of 100 tokens, with the right one of 160 and the wrong one of 120.
    assert compared(KIMI, "long2short") == [(0, 2), (0, 4)]
    assert compared(KIMI, "long2short", per_task=1) == [(0, 2)]
    assert compared(KIMI, "none") == []


def test_right_ones_take_turns_against_wrong_ones():
    rounds = [[(0, 3), (1, 4), (2, 3)], [(0, 4), (1, 3), (2, 4)]]
    assert compared(KIMI, "right-wrong") == [*rounds[0], *rounds[1]]
    assert compared(KIMI, "right-wrong", per_task=3) == rounds[0]
    assert compared(KIMI[:3], "right-wrong") == compared(KIMI[3:], "right-wrong") == []


@given(SAMPLES)
def test_what_is_chosen_obeys_its_rule(samples):
    right = {place for place, sample in enumerate(samples) if sample.right}
    assert kept(samples, "right") == sorted(right)
    for place in kept(samples, "best"):
        assert samples[place].reward == max(s.reward for s in samples)
    for place in kept(samples, "shortest"):
        assert samples[place].length == min(samples[p].length for p in right)
    pairs = compared(samples, "right-wrong")
    assert len(set(pairs)) == len(pairs) == len(right) * (len(samples) - len(right))
    assert all(better in right and worse not in right for better, worse in pairs)
    for better, worse in compared(samples, "long2short"):
        assert better in right and samples[worse].length > samples[better].length


@pytest.mark.parametrize(
    ("rule", "value"), [(kept, "longest"), (compared, "wrong-right")], ids=["keep", "pairs"]
)
def test_an_unknown_rule_is_refused(rule, value):
    with pytest.raises(ValueError, match=rf"\({value}\) must be "):
        rule(KIMI, value)


def spoken(text):
    return Transcript(text=text, written=text)


def test_conditions_ask_for_what_rubrics_give():
    english, fresh = parse_conditions("language(language='en') >= 0.9, repetition >= -0.5")
    assert (english.text, fresh.text) == ("language(language='en') >= 0.9", "repetition >= -0.5")
    # Nine words of ten are of the Latin script.
    assert english.met(spoken("a b c d e f g h i 好"))
    assert not english.met(spoken("a b c d e f g 好 好"))
    # Of four 3-grams two stood before.
    assert fresh.met(spoken("a b c a b c"))
    assert not fresh.met(spoken("a a a a a a"))
    (few,) = parse_conditions("tag_count <= 0")
    assert few.met(spoken("plain")) and not few.met(spoken("<think>\nx"))
    assert parse_conditions(" ") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("language", "must be conditions such as language >= 0.9"),
        ("language >=", "must be conditions such as"),
        ("language > 0.9", "must be conditions such as"),
        ("language >= x", "must be conditions such as"),
        ("language >= 1e999", "must be conditions such as"),
        ("0.1 <= language <= 0.9", "must be conditions such as"),
        ("language(of='en') >= 0.9", "language"),
    ],
)
def test_what_is_no_condition_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_conditions(text)


def test_a_mistyped_rubric_is_asked_about():
    with pytest.raises(UnknownNameError, match="Did you mean 'language'"):
        parse_conditions("langage >= 0.9")
