"""Expressions: read strictly, computed exactly, found by trying; drawn tasks can be solved."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from envs.datasets.generated import NUM_TASKS
from envs.logic.countdown.arithmetic import (
    BadExpression,
    CountdownTasks,
    draw,
    evaluate,
    find,
    made_of,
)


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("7", 7, [7]),
        ("1 + 2 * 3", 7, [1, 2, 3]),
        ("(1+2)*3", 9, [1, 2, 3]),
        ("8 / (3 - 8 / 3)", 24, [8, 3, 8, 3]),
        ("1 / 3 + 1 / 3 + 1 / 3", 1, [1, 3, 1, 3, 1, 3]),
        ("10 - 4 - 3", 3, [10, 4, 3]),
        (" ((12)) ", 12, [12]),
        ("2 / 4", Fraction(1, 2), [2, 4]),
        ("0 * 9", 0, [0, 9]),
    ],
)
def test_values_are_exact(text, value, numbers):
    assert evaluate(text) == (value, numbers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "only numbers"),
        ("  ", "that is no expression"),
        ("1 +", "that is no expression"),
        ("(1 + 2", "that is no expression"),
        ("1 2", "that is no expression"),
        ("007", "that is no expression"),
        ("-3", "only numbers"),
        ("1 - -3", "only numbers"),
        ("+3", "only numbers"),
        ("2 ** 3", "only numbers"),
        ("7 // 2", "only numbers"),
        ("7 % 2", "only numbers"),
        ("2(3)", "only numbers"),
        ("()", "only numbers"),
        ("1.5", "only numbers"),
        ("1e3", "only numbers"),
        ("1_000", "only numbers"),
        ("0x10", "only numbers"),
        ("1, 2", "only numbers"),
        ("abs(3)", "only numbers"),
        ("1 + 2 = 3", "only numbers"),
        ("1 \N{MULTIPLICATION SIGN} 2", "only numbers"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "only numbers"),
        ("1\n+ 2", "only numbers"),
        ("__import__('os')", "only numbers"),
        ("1 / (2 - 2)", "it divides by zero"),
        ("1+" * 100 + "1", "more than 200 characters"),
        ("(" * 99 + "1" + ")" * 99 + "+", "that is no expression"),
    ],
)
def test_nothing_else_is_an_expression(text, says):
    with pytest.raises(BadExpression, match=says):
        evaluate(text)


def test_each_number_as_often_as_it_is_there():
    assert made_of((3, 3, 8, 8), "8 / (3 - 8 / 3)", use_all=True) == 24
    assert made_of((3, 3, 8, 8), "8 * 3", use_all=False) == 24
    for text, says in (
        ("8 * 3", "3 is not used|8 is not used"),
        ("8 + 8 + 8", "8 is not there so often"),
        ("2 * 12", "2 is not there so often"),
        ("38 - 3 - 8", "38 is not there so often"),
    ):
        with pytest.raises(BadExpression, match=says):
            made_of((3, 3, 8, 8), text, use_all=True)


@pytest.mark.parametrize("use_all", [False, True])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_drawn_task_can_be_solved(count, use_all):
    rng = random.Random(count)
    for _ in range(40):
        task = draw(rng, count, 25)
        assert len(task.numbers) == count and all(1 <= n <= 25 for n in task.numbers)
        assert 10 <= task.target <= 100 and task.target not in task.numbers
        expression = find(task.numbers, task.target, use_all)
        assert expression is not None
        assert made_of(task.numbers, expression, use_all) == task.target


def test_what_cannot_be_made_is_not_found():
    assert find((1, 1, 1), 100, use_all=False) is None
    assert find((2, 3, 7), 7, use_all=False) == "7"
    assert find((1, 1, 50), 26, use_all=True) is None
    assert find((1, 1, 50), 25, use_all=False) == "50 / (1 + 1)"
    assert find((1, 3, 8), 23, use_all=True) == "(8 * 3) - 1"


def test_no_numbers_with_their_target_are_in_two_splits():
    found = {
        split: {
            (tuple(sorted(task.numbers)), task.target)
            for seed in (0, 1)
            for task in map(CountdownTasks(split, seed, 3, 10).__getitem__, range(300))
        }
        for split in NUM_TASKS
    }
    assert all(len(tasks) > 50 for tasks in found.values())
    assert sum(map(len, found.values())) == len(set.union(*found.values()))
