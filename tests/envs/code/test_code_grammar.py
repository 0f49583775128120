"""The grammar: English, Python and meaning say the same."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.code.grammar import FILTERS, MAPS, REDUCTIONS, Recipe, Step, parse


def steps(table):
    def with_constant(name):
        takes = Step(name).takes_constant
        return st.builds(Step, st.just(name), st.integers(2, 9) if takes else st.none())

    names = st.lists(st.sampled_from(list(table)), max_size=2, unique=True)
    return names.flatmap(lambda chosen: st.tuples(*map(with_constant, chosen)))


recipes = st.builds(Recipe, steps(FILTERS), steps(MAPS), st.sampled_from(list(REDUCTIONS)))


def compiled(program):
    namespace = {}
    exec(program, namespace)
    return namespace["f"]


def test_the_text_and_program_of_an_example():
    recipe = Recipe((Step("even"), Step("above", 3)), (Step("add", 4), Step("multiply", 2)), "sum")
    assert recipe.describe() == (
        "keep even numbers, keep numbers above 3, add 4 to each, multiply each by 2, return the sum"
    )
    assert recipe.program() == (
        "def f(xs): return sum([(x + 4) * 2 for x in xs if x % 2 == 0 and x > 3])"
    )
    # 4 and 8 are kept: (4 + 4) * 2 + (8 + 4) * 2.
    assert recipe.run([1, 4, 2, 8, 7]) == 40


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sum", 3),
        ("largest", 9),
        ("smallest", -7),
        ("list", [9, -7, 1]),
        ("sorted", [-7, 1, 9]),
        ("reversed", [1, -7, 9]),
        ("first two", [9, -7]),
    ],
)
def test_each_reduction(name, expected):
    recipe = Recipe((), (), name)
    assert recipe.run([9, -7, 1]) == expected
    assert compiled(recipe.program())([9, -7, 1]) == expected


def test_nothing_left_reduces_to_zero_or_to_an_empty_list():
    none = Recipe((Step("above", 9),), (), "sum")
    answers = [Recipe(none.filters, (), name).run([1, 2]) for name in REDUCTIONS]
    assert answers == [0, 0, 0, [], [], [], []]


@given(recipes, st.lists(st.integers(-50, 50), max_size=8))
def test_the_program_does_what_the_recipe_means(recipe, xs):
    assert compiled(recipe.program())(list(xs)) == recipe.run(xs)


@given(recipes)
def test_reading_a_description_gives_the_recipe_back(recipe):
    assert parse(recipe.describe()) == recipe


def test_a_withheld_constant_is_a_question_mark_and_comes_back_when_filled():
    recipe = Recipe((Step("even"),), (Step("multiply", 3), Step("add", 5)), "list")
    withheld = recipe.withholding(recipe.maps[1])
    assert (
        withheld.describe()
        == "keep even numbers, multiply each by 3, add ? to each, return the list"
    )
    assert parse(withheld.describe()) == withheld
    assert withheld.withheld and not recipe.withheld
    assert withheld.filled(5) == recipe
    with pytest.raises(ValueError, match=r"withholds a constant: use filled\(k\) first"):
        withheld.program()
    with pytest.raises(ValueError, match="withholds a constant"):
        withheld.run([1])


def test_leaving_a_step_out():
    recipe = Recipe((Step("even"), Step("positive")), (Step("square"),), "sum")
    shorter = [recipe.without(step).describe() for step in recipe.steps]
    assert shorter == [
        "keep positive numbers, square each, return the sum",
        "keep even numbers, square each, return the sum",
        "keep even numbers, keep positive numbers, return the sum",
    ]


@pytest.mark.parametrize(
    "text", ["add three to each, return the sum", "add 3 to each", "", "f([0])"]
)
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="clause"):
        parse(text)


def test_all_texts_are_different():
    numbered = [Step(name, 2).english for name in [*FILTERS, *MAPS]]
    every = [*numbered, *(row.english for row in REDUCTIONS.values())]
    assert len(set(every)) == 7 + 6 + 7
    assert not any(a != b and a in b for a, b in itertools.permutations(numbered, 2))
