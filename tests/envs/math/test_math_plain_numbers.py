"""The verdict on plain numbers is math-verify's own, wherever there is one."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.math.verification.plain_numbers import plain_verdict
from envs.math.verification.worker import RIGHT, check

integers = st.one_of(st.integers(-20, 20), st.integers(-(10**15) + 1, 10**15 - 1))
positive = st.one_of(st.integers(1, 20), st.integers(1, 10**15 - 1))
decimals = st.tuples(integers, st.integers(0, 6)).map(
    lambda pair: f"{pair[0] / 10 ** pair[1]:.{pair[1]}f}"
)
numbers = st.one_of(
    integers.map(str),
    decimals,
    st.tuples(integers, positive).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    st.tuples(integers, positive, st.sampled_from(["frac", "dfrac"])).map(
        lambda t: f"{'-' if t[0] < 0 else ''}\\{t[2]}{{{abs(t[0])}}}{{{t[1]}}}"
    ),
)
near = st.tuples(st.integers(-30, 30), st.integers(0, 10), st.integers(1, 12)).flatmap(
    lambda t: st.permutations(
        [
            f"{t[0] * t[2]}/{t[2]}",
            str(t[0]),
            f"{t[0]}.{'0' * max(1, t[1] % 7)}",
            f"{t[0] + t[1] * 1e-6:.6f}",
            f"{t[0] + t[1] * 1e-5:.5f}",
            f"-{abs(t[0])}",
        ]
    ).map(lambda texts: tuple(texts[:2]))
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.tuples(numbers, numbers), near))
@example(("0.5", "1/2"))
@example(("0.333333", "1/3"))
@example(("0", "-0"))
@example(("0.0", "-0/7"))
@example(("100000.000001", "100000"))
@example(("999999999.999", "999999999999/1000"))
@example((r"\frac{0}{5}", "0.0"))
def test_it_agrees_with_math_verify(pair):
    verdict = plain_verdict(*pair)
    if verdict is not None:
        assert verdict == (check(*pair) == RIGHT), pair


@settings(max_examples=200, deadline=None)
@given(st.tuples(integers, integers))
def test_integers_are_always_decided(pair):
    assert plain_verdict(str(pair[0]), str(pair[1])) == (pair[0] == pair[1])


@pytest.mark.parametrize(
    "text",
    [
        *("", "007", "+5", "5.", "1,234", "1/0", r"\frac{1}{0}", "5%", "1e5", "x", "٣", "1٣"),
        *("1 2", "5\n", "1" * 16, "1234567.123456", "1.1234567", r"\frac12", "--5", "3/-4"),
    ],
)
def test_whatever_is_not_plain_is_left_to_math_verify(text):
    assert plain_verdict("5", text) is None
    assert plain_verdict(text, "5") is None
    assert plain_verdict("1/3", "0.333333") is None, "equal when rounded: it is math-verify's say"
