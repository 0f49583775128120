import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.run.metrics.reflection import PHRASES, ReflectionRates, reflection_rates, reflects


@pytest.mark.parametrize("phrase", PHRASES)
def test_each_phrase_is_found_whatever_its_case(phrase):
    assert reflects(f"2 + 2 = 5. {phrase} no")
    assert reflects(phrase.title() + " 4")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I wait for the answer",
        "await, then say it",
        "however long it takes",
        "alternatively 4",
        "the answer is 4.",
    ],
)
def test_other_words_are_none(text):
    assert not reflects(text)


def test_words_made_of_one_are_found():
    assert reflects("rechecking the sum")
    assert reflects("so\nWait, that is wrong")


def test_ten_items_four_right_of_which_three_said_so():
    correct = [True] * 4 + [False] * 6
    explicit = [True, True, True, False, True, True, True, False, False, False]
    assert reflection_rates(correct, explicit) == ReflectionRates(0.4, 0.6, 0.3, 0.1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_explicit_and_implicit_accuracy_add_up(items):
    rates = reflection_rates(*map(list, zip(*items, strict=True)))
    assert rates.explicit_accuracy + rates.implicit_accuracy == pytest.approx(rates.accuracy)
    assert rates.explicit_accuracy <= min(rates.explicit_rate, rates.accuracy)


@pytest.mark.parametrize(("correct", "explicit"), [([], []), ([True], []), ([True], [True, False])])
def test_items_are_needed_and_of_equal_number(correct, explicit):
    with pytest.raises(ValueError, match="one of each"):
        reflection_rates(correct, explicit)
