"""The authors: the one that reads everything, and the sloppy one."""

import numpy as np
import pytest

from envs.code.grammar import parse
from envs.code.scripted_policies import GoldPolicy, SloppyPolicy, read_constant

TASK = "Write f(xs) in Python: keep even numbers, keep numbers above 3, add 2 to each, "
TASK += "multiply each by 5, return the sum"
ASKING = (
    "Write f(xs) in Python: keep even numbers, add 2 to each, subtract ? from each, return the list"
)


def test_gold_writes_what_the_description_says():
    assert GoldPolicy()(TASK) == (
        "def f(xs): return sum([(x + 2) * 5 for x in xs if x % 2 == 0 and x > 3])"
    )


def test_gold_reads_the_withheld_constant_from_a_tests_result():
    author = GoldPolicy()
    assert author(ASKING) == "def f(xs): return [(x + 2) - 2 for x in xs if x % 2 == 0]"
    assert (
        author("f([-2]) returned [-2], expected [-7]")
        == "def f(xs): return [(x + 2) - 7 for x in xs if x % 2 == 0]"
    )


@pytest.mark.parametrize(
    ("feedback", "constant"),
    [
        ("f([0]) returned [0], expected [-6]", 8),
        ("f([0]) raised SyntaxError: invalid syntax, expected [-6]", 8),
        ("f([0]) returned [0], expected [-60]", None),
        ("f([0]) returned [0], expected -6", None),
        ("f(?) returned ?, expected ?", None),
    ],
)
def test_reading_a_constant(feedback, constant):
    recipe = parse(ASKING.removeprefix("Write f(xs) in Python: "))
    assert read_constant(recipe, feedback) == constant


def test_gold_does_not_guess_from_blank_feedback():
    author = GoldPolicy()
    author(ASKING)
    with pytest.raises(ValueError, match="does not show the withheld constant"):
        author("f(?) returned ?, expected ?")


def test_the_sloppy_author_forgets_second_steps_at_its_rate():
    rng = np.random.default_rng(1)
    programs = [SloppyPolicy(rng)(TASK) for _ in range(2000)]
    without_filter = np.mean(["x > 3" not in program for program in programs])
    without_map = np.mean(["* 5" not in program for program in programs])
    # Four standard deviations of a rate of 0.7 over 2000 draws.
    assert abs(without_filter - 0.7) < 0.044
    assert abs(without_map - 0.7) < 0.044
    assert all("x % 2 == 0" in program and "x + 2" in program for program in programs)


def test_the_sloppy_author_guesses_and_reads_most_of_the_feedback():
    rng = np.random.default_rng(2)
    guesses, repaired = [], 0
    for _ in range(1600):
        author = SloppyPolicy(rng)
        guesses.append(int(author(ASKING).partition(" for")[0][-1]))
        repaired += "- 7 for" in author("f([-2]) returned [-2], expected [-7]")
    assert np.all(np.abs(np.bincount(guesses, minlength=10)[2:] / 1600 - 1 / 8) < 0.034)
    # Read three times in five, and guessed an eighth of the rest.
    assert abs(repaired / 1600 - (0.6 + 0.4 / 8)) < 0.05


def test_the_sloppy_author_repeats_itself_given_the_same_generator():
    one, two = (SloppyPolicy(np.random.default_rng(7))(TASK) for _ in range(2))
    assert one == two
