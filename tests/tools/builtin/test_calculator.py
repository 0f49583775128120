"""The calculator: what it computes, what it refuses, what it cannot be made to do."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tools
from tools.builtin.calculator import MAX_BITS, evaluate, show
from tools.tool import BadArguments


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7", 7),
        (" 1 + 2 * 3 ", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("100 / 10 / 5", 2),
        ("1/3 + 1/6", Fraction(1, 2)),
        ("0.1 + 0.2", Fraction(3, 10)),
        (".5", Fraction(1, 2)),
        ("2^3^2", 512),
        ("2**10", 1024),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^-2", Fraction(1, 4)),
        ("--3", 3),
        ("2 * -3", -6),
        ("(-1)^1000001", -1),
        ("1^999999999999", 1),
        ("0^0", 1),
        ("0^5", 0),
        ("3 × 4 ÷ 6 − 1", 1),
    ],
)
def test_values_are_exact(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "a number should stand at the end"),
        ("1 +", "a number should stand at the end"),
        ("* 2", r"a number should stand before '\*'"),
        ("1 2", "cannot read '2' where an operator should stand"),
        ("2(3)", r"cannot read '\(' where an operator should stand"),
        ("(1", "a parenthesis is not closed"),
        ("1)", r"cannot read '\)' where an operator should stand"),
        ("1/0", "division by zero"),
        ("0^-1", "division by zero"),
        ("1 / (2 - 2)", "division by zero"),
        ("2^0.5", "the exponent 1/2 is no integer"),
        ("x + 1", r"cannot read 'x \+ 1': use numbers"),
        ("1,000", "cannot read ',000'"),
        ("1e5", "cannot read 'e5'"),
        ("__import__('os')", 'cannot read "__import__'),
        ("1 + ٣", "cannot read '٣'"),
        ("(" * 60 + "1" + ")" * 60, "more than 50 levels"),
        ("-" * 900 + "1", "more than 50 levels"),
        ("2^" * 60 + "2", "more than 50 levels"),
        ("1+" * 600 + "1", "has 1201 characters, at most 1000"),
        ("9^9^9^9", "grows beyond 10000 bits"),
        ("(9^3000)^2", "grows beyond 10000 bits"),
        ("2^10001", "grows beyond 10000 bits"),
        ("0.5^-99999999999999999999", "grows beyond 10000 bits"),
        ("9" * 999, None),
    ],
)
def test_what_is_refused_says_why_at_once(expression, says):
    started = time.process_time()
    if says is None:
        assert evaluate(expression) == int(expression)
    else:
        with pytest.raises(BadArguments, match=says):
            evaluate(expression)
    assert time.process_time() - started < 2


@given(
    st.recursive(
        st.integers(0, 50).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        max_leaves=8,
    )
)
def test_it_agrees_with_pythons_own_fractions(expression):
    exact = "".join(f"Fraction({c})" if c.isdigit() else c for c in _words(expression))
    try:
        expected = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(BadArguments, match="division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == expected


def _words(expression):
    return expression.replace("(", "( ").replace(")", " )").split(" ")


def test_numbers_are_shown_exactly_and_in_decimals():
    shown = {
        Fraction(7): "7",
        Fraction(-3, 8): "-3/8 = -0.375",
        Fraction(1, 3): "1/3 is about 0.3333333333",
        Fraction(-200, 3): "-200/3 is about -66.6666666667",
        Fraction(1, 10**12): "1/1000000000000 is about 0.0",
    }
    assert {value: show(value) for value in shown} == shown
    assert len(show(Fraction(2 ** (MAX_BITS - 1)))) == 3010


async def test_it_is_a_tool_by_name():
    calculator = tools.make("calculator")
    assert calculator.name == "calculator"
    assert calculator.parameters["required"] == ["expression"]
    assert "exactly" in calculator.description
    result = await calculator({"expression": "1/2 + 1/4"})
    assert (result.text, result.data, result.error) == ("3/4 = 0.75", "3/4", None)
    result = await calculator({"expression": "1/0"})
    assert (result.text, result.error) == ("Error: division by zero", "division by zero")
