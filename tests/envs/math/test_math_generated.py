"""Generated problems: right answers, disjoint splits, and nothing but (split, index, seed)."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
import sympy

from envs.datasets import SPLITS
from envs.math.generated import LEVELS, TOPICS, GeneratedTasks, latex, polynomial, split_of_problem

KINDS = [(topic, level) for topic in TOPICS for level in LEVELS]


def by_sympy(question: str) -> sympy.Expr:
    """What a computer algebra system makes of a question."""
    verb, text = re.match(r"(Compute|Solve for x:|Expand) (.*)\.$", question).groups()
    text = re.sub(r"(\d)x", r"\1*x", text).replace(")(", ")*(").replace("^", "**")
    if verb == "Solve for x:":
        left, right = text.split(" = ")
        (root,) = sympy.solve(sympy.sympify(left) - sympy.sympify(right))
        return root
    return sympy.expand(sympy.sympify(text, rational=True))


def parsed(answer: str) -> sympy.Expr:
    fraction = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", answer)
    if fraction:
        return sympy.Rational(int(fraction[1] + fraction[2]), int(fraction[3]))
    return sympy.sympify(re.sub(r"(\d)x", r"\1*x", answer).replace("^", "**"))


@pytest.mark.parametrize(("topic", "level"), KINDS)
def test_answers_are_right(topic, level):
    tasks = GeneratedTasks("train", 0, topic, level)
    for index in range(60):
        task = tasks[index]
        assert sympy.expand(parsed(task.answer) - by_sympy(task.question)) == 0, task


@pytest.mark.parametrize(("topic", "level"), KINDS)
def test_no_problem_is_in_two_splits_whatever_the_seeds(topic, level):
    asked = {
        split: {
            GeneratedTasks(split, seed, topic, level)[index].question
            for seed in range(3)
            for index in range(150)
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert asked[one].isdisjoint(asked[other])


def test_the_order_of_terms_does_not_change_the_split():
    tasks = [GeneratedTasks(split, 0, "arithmetic", 1)[i] for split in SPLITS for i in range(200)]
    terms = {}
    for number, task in enumerate(tasks):
        numbers = re.findall(r"[+-]? ?\d+", task.question)
        key = tuple(sorted(int(n.replace(" ", "")) for n in numbers))
        assert terms.setdefault(key, number // 200) == number // 200


def test_splits_hold_their_shares_of_all_problems():
    shares = Counter(split_of_problem(f"sum {i}") for i in range(10_000))
    assert shares["test"] == pytest.approx(1000, abs=150)
    assert shares["validation"] == pytest.approx(1000, abs=150)


def test_a_task_depends_on_split_index_and_seed_alone():
    first, again = (GeneratedTasks("train", 3, "mixed", 1) for _ in range(2))
    ahead = [first[i] for i in range(40)]
    assert [again[i] for i in reversed(range(40))] == ahead[::-1]
    other = GeneratedTasks("train", 4, "mixed", 1)
    assert sum(other[i] == task for i, task in enumerate(ahead)) < 10
    assert len({task.question for task in ahead}) > 35
    with pytest.raises(IndexError):
        GeneratedTasks("test", 0, "mixed", 1)[1024]


def test_mixed_takes_the_topics_in_turn():
    tasks = GeneratedTasks("test", 0, "mixed", 1)
    assert [tasks[i].question.split()[0] for i in range(4)] == ["Compute", "Solve"] * 2


def test_the_first_level_is_small():
    for index in range(400):
        task = GeneratedTasks("train", 0, "mixed", 1)[index]
        assert 0 <= int(task.answer) <= 18
        assert len(task.question) <= 30


def test_numbers_and_polynomials_are_written_as_one_writes_them():
    assert [latex(Fraction(n, 6)) for n in (12, 3, -4)] == ["2", r"\frac{1}{2}", r"-\frac{2}{3}"]
    assert polynomial(1, -1, 3) == "x^2 - x + 3"
    assert polynomial(-2, 0, -7) == "-2x^2 - 7"
    assert polynomial(0, 1, 0) == "x"
    assert polynomial(0, 0, 0) == "0"
