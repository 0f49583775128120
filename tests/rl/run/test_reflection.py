import pytest

from rl.run.reflection import PHRASES, reflects


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
