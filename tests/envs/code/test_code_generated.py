"""Generated tasks: held out by composition, repeatable, distinct, and not passed by triviality."""

from collections import Counter

import numpy as np
import pytest

from envs.code.generated import (
    NUM_TASKS,
    PROMPT,
    GeneratedTasks,
    draw_tests,
)
from envs.code.grammar import REDUCTIONS, Recipe, Step, parse
from envs.code.scripted_policies import SloppyPolicy

TRIVIAL = {
    "the list": list,
    "sorted": sorted,
    "reversed": lambda xs: xs[::-1],
    "first two": lambda xs: xs[:2],
    "sum": sum,
    "largest": lambda xs: max(xs, default=0),
    "smallest": lambda xs: min(xs, default=0),
    "length": len,
    "zero": lambda xs: 0,
    "one": lambda xs: 1,
    "nothing": lambda xs: [],
    "none": lambda xs: None,
}

GOLDEN = (
    "keep even numbers, keep numbers above 8, subtract 2 from each, take each modulo 3, "
    "return the list sorted",
    ([-3, 10, 8], [2]),
    ([13, 8, 10, 14, 14, 14], [0, 0, 0, 2]),
)


@pytest.fixture(scope="module")
def drawn():
    """600 training tasks that state all constants, and 300 that withhold a constant."""
    complete, withheld = GeneratedTasks("train"), GeneratedTasks("train", withhold=True)
    return [complete.draw(i) for i in range(600)], [withheld.draw(i) for i in range(300)]


def composition(recipe):
    filters = tuple(step.name for step in recipe.filters)
    return filters, tuple(step.name for step in recipe.maps), recipe.reduction


def passes(program, task):
    return all(program(list(xs)) == expected for xs, expected in task.public + task.hidden)


def test_no_composition_is_in_two_splits():
    found = {}
    for seed, withhold in [(0, False), (1, False), (0, True)]:
        for split in NUM_TASKS:
            tasks = GeneratedTasks(split, seed, withhold=withhold)
            for index in range(100):
                found.setdefault(composition(tasks.draw(index).recipe), set()).add(split)
    assert len(found) > 400
    assert all(len(splits) == 1 for splits in found.values())


def test_a_task_is_a_function_of_split_index_and_seed():
    assert GeneratedTasks("test", 3)[77] == GeneratedTasks("test", 3)[77]
    prompts = {
        GeneratedTasks(split, seed)[77].prompt for split in ("train", "test") for seed in (0, 1)
    }
    assert len(prompts) == 4


def test_a_task_is_the_same_on_every_machine():
    # Held-out numbers of two machines compare only if their tasks are the same.
    task = GeneratedTasks("test", 0).draw(0)
    assert (task.description, task.public[0], task.hidden[1]) == GOLDEN


def test_evaluation_tasks_are_distinct():
    tasks = GeneratedTasks("validation")
    assert len({tasks[i].prompt for i in range(len(tasks))}) == 1024
    withheld = GeneratedTasks("validation", withhold=True)
    assert len({withheld.draw(i).recipe for i in range(len(withheld))}) == 128


def test_no_two_indices_of_an_evaluation_split_share_a_candidate():
    tasks = GeneratedTasks("validation", withhold=True)
    candidates = [recipe for index in range(40) for recipe in tasks._candidates(index)]
    assert len(set(candidates)) == len(candidates) > 2000
    # The training split never runs out; with its many passes it comes back to a recipe.
    assert len(list(GeneratedTasks("train")._candidates(0))) == 1000


@pytest.mark.slow
def test_test_tasks_are_distinct():
    for withhold, count in [(False, 4096), (True, 512)]:
        tasks = GeneratedTasks("test", withhold=withhold)
        assert len({tasks.draw(i).recipe for i in range(len(tasks))}) == count


def test_sizes_and_range():
    assert [len(GeneratedTasks(split)) for split in NUM_TASKS] == [1_000_000, 1024, 4096]
    with pytest.raises(IndexError, match="task 1024 of split 'validation': 0 to 1023"):
        GeneratedTasks("validation")[1024]
    with pytest.raises(IndexError):
        GeneratedTasks("train")[-1]
    assert GeneratedTasks("train")[999_999].prompt.startswith(PROMPT)


def test_each_task_has_eleven_tests_with_the_empty_list_and_six_outputs(drawn):
    for task in [*drawn[0], *drawn[1]]:
        assert (len(task.public), len(task.hidden)) == (3, 8)
        assert task.hidden[0] == ([], task.recipe.run([]))
        outputs = [expected for _, expected in task.public + task.hidden]
        assert len({repr(output) for output in outputs}) >= 6
        assert all(len(xs) <= 3 for xs, _ in task.public)


def test_leaving_out_any_step_fails_a_hidden_test(drawn):
    for task in [*drawn[0], *drawn[1]]:
        for step in task.recipe.steps:
            shorter = task.recipe.without(step)
            assert any(shorter.run(xs) != expected for xs, expected in task.hidden)


def test_trivial_programs_pass_under_two_percent(drawn):
    passed = {
        name: sum(passes(program, task) for task in drawn[0]) for name, program in TRIVIAL.items()
    }
    assert max(passed.values()) < 0.02 * len(drawn[0]), passed


def test_every_kind_of_task_comes(drawn):
    recipes = [task.recipe for task in drawn[0]]
    shapes = Counter((len(recipe.filters), len(recipe.maps)) for recipe in recipes)
    # Two of three compositions have two filters and two maps, and two of three constants too.
    assert all(40 < shapes[shape] < 220 for shape in [(0, 2), (1, 1), (1, 2), (2, 1), (2, 2)])
    reductions = Counter(recipe.reduction for recipe in recipes)
    assert reductions.keys() == set(REDUCTIONS) and min(reductions.values()) > 40
    constants = Counter(step.constant for recipe in recipes for step in recipe.steps)
    assert all(constants[k] > 60 for k in range(2, 10))


def test_a_task_whose_step_cannot_matter_is_dropped():
    def drawn_from(filters, maps):
        return draw_tests(Recipe(filters, maps, "sum"), 0)

    # A multiple of 2 is even; adding 4 does not change a remainder by 2; nothing is both.
    assert drawn_from((Step("even"), Step("multiple", 2)), ()) is None
    assert drawn_from((), (Step("add", 4), Step("remainder", 2))) is None
    assert drawn_from((Step("above", 9), Step("below", 3)), ()) is None
    assert drawn_from((Step("even"),), (Step("add", 4),)) is not None


def test_the_first_public_test_shows_the_withheld_constant(drawn):
    for task in drawn[1]:
        assert task.description.count("?") == 1 and len(task.recipe.filters) < 2
        assert parse(task.description).filled(task.recipe.maps[-1].constant) == task.recipe
        ((x,), expected) = task.public[0]
        (value,) = expected if isinstance(expected, list) else [expected]
        assert abs(value) == task.recipe.maps[-1].constant
        wrong = [k for k in range(2, 10) if k != task.recipe.maps[-1].constant]
        parsed = parse(task.description)
        assert all(parsed.filled(k).run([x]) != expected for k in wrong)


def test_the_sloppy_author_leaves_something_to_learn(drawn):
    rng = np.random.default_rng(0)
    right = []
    for task in drawn[0]:
        namespace = {}
        exec(SloppyPolicy(rng)(PROMPT + task.description), namespace)
        right.append(passes(namespace["f"], task))
    assert 0.2 < np.mean(right) < 0.5
