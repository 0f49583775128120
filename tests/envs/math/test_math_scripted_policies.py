"""The author who solves generated problems, and the careless one."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.math.scripted_policies import BARE, TAGGED, CarelessPolicy, GoldPolicy, expression, linear
from envs.play import play


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3x + 4", (3, 4)),
        ("x - 4", (1, -4)),
        ("-x", (-1, 0)),
        ("12", (0, 12)),
        ("2x-3x+1", (-1, 1)),
    ],
)
def test_linear(text, expected):
    assert linear(text) == expected


@pytest.mark.parametrize("text", ["x^2", "3y", "+"])
def test_linear_says_what_it_cannot_read(text):
    with pytest.raises(ValueError, match="is no sum of numbers and multiples of x"):
        linear(text)


def test_questions_become_expressions():
    assert expression("Compute 1/2 - 3.") == "1/2 - 3"
    assert expression("Solve for x: 5x - 7 = 2x + 9.") == "(9 - -7) / (5 - 2)"
    assert expression("Expand (x + 1)(x - 1).") is None
    with pytest.raises(ValueError, match="'Hello' is no generated question"):
        expression("Hello")


def test_the_gold_author_word_for_word():
    assert GoldPolicy(BARE, "none")("Compute 3 + 4.") == "3 + 4\n\\boxed{7}"
    assert GoldPolicy(TAGGED, "none")("Expand (x + 1)(x - 1).") == (
        "<think>\nExpand (x + 1)(x - 1).\n</think>\n<answer>\n\\boxed{x^2 - 1}\n</answer>"
    )
    author = GoldPolicy(BARE, "calculator")
    question = "Solve for x: 4x + 1 = 2."
    assert author(question) == "<calculator> (2 - 1) / (4 - 0) </calculator>"
    assert author(" <result> 1/4 = 0.25 </result> ") == "\n\\boxed{\\frac{1}{4}}"
    author = GoldPolicy(BARE, "calculator", chat=True)
    assert author(question) == (
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "(2 - 1) / (4 - 0)"}}\n'
        "</tool_call>"
    )
    assert author("<tool_response>\n1/4 = 0.25\n</tool_response>") == "\n\\boxed{\\frac{1}{4}}"
    author = GoldPolicy(BARE, "python")
    assert author(question) == (
        "<code>\nfrom fractions import Fraction as F\nprint((F(2) - F(1)) / (F(4) - F(0)))\n</code>"
    )
    with pytest.raises(ValueError, match="holds no number"):
        author("\n<interpreter>\nTraceback\n</interpreter>\n")


class Loaded:
    """A generator that draws the same number every time, and a choice's first."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number

    def choice(self, options):
        return options[0]


def test_the_careless_author_word_for_word():
    def says(question, draws, tool="none"):
        return CarelessPolicy(BARE, tool, Loaded(draws))(question)

    total, equation = "Compute 7 + 5 - 4.", "Solve for x: 3x - 4 = 11."
    assert says(total, 0.9) == "7 + 5 = 12\n12 - 4 = 8\n\\boxed{8}"
    assert says(total, 0.3) == "7 + 5 = 12\n\\boxed{12}"
    assert says(total, 0.0) == "7 + 5 = 11\n\\boxed{11}"
    assert says(equation, 0.9) == "3x = 11 + 4 = 15\nx = 15 / 3 = 5\n\\boxed{5}"
    assert says(equation, 0.3) == "3x = 11 + 4 = 15\n\\boxed{15}"
    assert says(total, 0.3, "calculator") == "<calculator> 7 + 5 </calculator>"
    assert says(equation, 0.3, "calculator") == "<calculator> (11 - -4) </calculator>"


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [({"topic": "arithmetic"}, 0.3, 0.5), ({"topic": "algebra"}, 0.3, 0.5)],
)
def test_demonstrations_leave_something_to_learn(options, low, high):
    env = envs.make("math", **options)
    rng = np.random.default_rng(1)
    right = [play(env, env.demonstrator(rng), task=task).reward for task in range(600)]
    env.close()
    assert low <= np.mean(right) <= high
