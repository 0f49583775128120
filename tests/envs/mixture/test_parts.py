"""What a mixture's text means, and in which proportion and order its tasks come."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.mixture.parts import MAX_PERIOD, MixOptions, MixTasks, pattern_of
from tools.registry import UnknownNameError


def test_a_text_names_parts_weights_and_options():
    options = MixOptions(
        of='2*search-qa(hops=2, rubric="f1 + 0.5*gate(em)") + 0.5 * math(instructions=false,'
        " verify_s=1.5) + reasoning-gym/leg_counting",
        split="validation",
        seed=7,
        token_budget="max",
    )
    search, math, gym = options.parts()
    assert [part.env_id for part in (search, math, gym)] == [
        *("search-qa-v0", "math-v0", "reasoning-gym/leg_counting-v0")
    ]
    assert [part.weight for part in (search, math, gym)] == [2, Fraction(1, 2), 1]
    assert (search.options.hops, search.options.rubric) == ("2", "f1 + 0.5*gate(em)")
    assert (math.options.instructions, math.options.verify_s) == (False, 1.5)
    assert math.name == "math(instructions=false, verify_s=1.5)"
    for part in options.parts():
        shared = (part.options.split, part.options.seed, part.options.token_budget)
        assert shared == ("validation", 7, "max")


def test_the_longest_part_bounds_turns_and_steps():
    options = MixOptions(of="search-qa(max_turns=7) + knights-knaves(step_timeout_s=300)")
    assert (options.max_turns, options.step_timeout_s) == (7, 300)
    assert MixOptions(of="search-qa", max_turns=9).max_turns == 9
    with pytest.raises(ValueError, match=r"max_turns \(3\) must be at least a part's own, 4"):
        MixOptions(of="search-qa", max_turns=3)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("", r"of \(''\) must name environments, such as 2\*search-qa \+ math"),
        ("math +", r"of \('math \+'\) must name environments"),
        ("math & sudoku", r"of \(math & sudoku\) must be a sum .*: cannot read 'math & sudoku'"),
        ("math + 2 sudoku", r"cannot read '2 sudoku'"),
        ("math(level)", r"of: math\(level\): cannot read 'level': give key=value, key=value"),
        ("math(lvel=2)", r"of: math\(lvel=2\): math-v0 has no option 'lvel'. Did you mean 'level'"),
        ("math(level=9)", r"of: math\(level=9\): level \(9\) must be one of 1, 2, 3"),
        ("math(level=x)", r"of: math\(level=x\): invalid literal for int"),
        ("math(instructions=no)", r"of: .*: instructions \(no\) must be true or false"),
        ("math(split=test)", r"of: math\(split=test\): split is the mixture's"),
        ("math + math", r"math stands there twice: give it a weight of 2"),
        ("0*math", r"the weight of math must be above 0"),
        ("0.999*math + 0.0001*sudoku", r"weights must be like small whole numbers, 2\*a \+ 3\*b"),
        ("math + mix", r"a mixture has no mixtures among its parts"),
    ],
)
def test_a_malformed_mixture_is_refused(of, message):
    with pytest.raises(ValueError, match=message):
        MixOptions(of=of)


def test_an_unknown_environment_is_named():
    with pytest.raises(UnknownNameError, match=r"unknown environment 'maths'. Did you mean 'math"):
        MixOptions(of="search-qa + maths")


def test_parts_take_turns_as_evenly_as_they_can():
    assert pattern_of([Fraction(2), Fraction(1)]) == (0, 1, 0)
    assert pattern_of([Fraction(1, 2), Fraction(1, 2)]) == (0, 1)
    assert pattern_of([Fraction(3, 10), Fraction(7, 10)]) == (1, 0, 1, 1, 0, 1, 1, 1, 0, 1)


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_stretch_has_its_shares_to_within_one(weights):
    pattern = pattern_of([Fraction(weight) for weight in weights])
    assert len(pattern) <= MAX_PERIOD
    for length in range(len(pattern) + 1):
        for part, weight in enumerate(weights):
            due = length * weight / sum(weights)
            assert abs(pattern[:length].count(part) - due) < 1.0 + 1e-9


def test_train_repeats_small_parts_and_the_other_splits_repeat_nothing():
    weights, parts = [Fraction(2), Fraction(1)], ["abcde", range(100)]
    train = MixTasks(parts, weights, again=True)
    tasks = [(train[i].part, train[i].index) for i in range(len(train))]
    counts = Counter(part for part, _ in tasks)
    assert counts == {0: 200, 1: 100}
    assert {own for part, own in tasks if part == 1} == set(range(100))
    assert [own for part, own in tasks if part == 0][:7] == [0, 1, 2, 3, 4, 0, 1]
    assert repr(train[3]) == "MixTask(0, 'c')"
    held_out = MixTasks(parts, weights, again=False)
    tasks = [(held_out[i].part, held_out[i].index) for i in range(len(held_out))]
    assert len(tasks) == len(set(tasks)) == 6
    assert Counter(part for part, _ in tasks) == {0: 4, 1: 2}
    with pytest.raises(IndexError):
        held_out[6]


def test_whole_parts_play_every_task_and_the_others_their_share():
    """Of 5 + 2 rows and generated tasks, until the rows are over: weights 1, 1 and 2."""
    tasks = MixTasks(
        [range(5), range(2), range(100)],
        [Fraction(1), Fraction(1), Fraction(2)],
        again=False,
        whole=[True, True, False],
    )
    played = [(task.part, task.index) for task in map(tasks.__getitem__, range(len(tasks)))]
    assert len(set(played)) == len(played)
    by_part = Counter(part for part, _ in played)
    assert (by_part[0], by_part[1]) == (5, 2)
    assert 8 <= by_part[2] <= 10, "two of the third for one of the first"
    assert played[-1] == (0, 4), "they end with the last row"
    for part, count in by_part.items():
        assert [index for p, index in played if p == part] == list(range(count))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.booleans()), min_size=1, max_size=4)
)
@settings(deadline=None, max_examples=60)
def test_no_task_of_a_whole_part_is_missing_or_comes_twice(parts):
    sizes, weights, whole = zip(*parts, strict=True)
    if not any(whole):
        return
    tasks = MixTasks(
        [range(size) for size in sizes], [Fraction(w) for w in weights], again=False, whole=whole
    )
    played = Counter((task.part, task.index) for task in map(tasks.__getitem__, range(len(tasks))))
    assert set(played.values()) == {1}
    for part, size in enumerate(sizes):
        own = sum(p == part for p, _ in played)
        assert own == size if whole[part] else own <= size


def test_an_evaluation_plays_every_row_of_parts_whose_rows_name_no_split(tmp_path):
    def rows(name, count, **more):
        path = tmp_path / name
        lines = [{"question": f"{i} + 1?", "answer": i + 1, **more} for i in range(count)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    plain, named = rows("plain.jsonl", 30), rows("test.jsonl", 12)
    of = f'math(tasks="{plain}") + math(tasks="{named}") + math(level=2)'
    splits = [part.options.split for part in MixOptions(of=of, split="all").parts()]
    assert splits == ["all", "test", "test"]
    assert MixOptions(of=of).parts_without_split() == [f'math(tasks="{plain}")']
    assert not MixOptions(of=f'math(tasks="{named}") + sudoku').parts_without_split()
    env = envs.make("mix", of=of, split="all")
    first = [env.tasks[index] for index in range(len(env.tasks))]
    assert Counter(task.part for task in first) == {0: 30, 1: 12, 2: 29}
    env.close()
    with pytest.raises(ValueError, match=r"split \('all'\) is for rows that name no split, and no"):
        MixOptions(of="math + sudoku", split="all")
