"""The host's comparison of values and output."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from tools.sandbox.grading.compare import equal, same_output


@pytest.mark.parametrize(
    ("got", "expected"),
    [(1, 1.0), (True, 1), ([1, (2,)], [1.0, (2,)]), ({1: "a"}, {1.0: "a"}), ({1}, frozenset([1]))],
)
def test_equal_as_python_says(got, expected):
    assert equal(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ((1,), [1]),
        ("1", 1),
        (math.nan, 1.0),
        (1.0, math.nan),
        (None, 0),
        (0.1 + 0.2, 0.3),
        ([1], [1, 2]),
    ],
)
def test_not_equal_as_python_says(got, expected):
    assert not equal(got, expected)


@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_an_expected_nan_matches_only_a_nan(tolerance):
    nan = float("nan")
    wanted = {"x": [1, nan, (nan, "a")]}
    assert equal(nan, math.nan, tolerance)
    assert equal({"x": [1, nan, (nan, "a")]}, wanted, tolerance)
    assert equal(complex(nan, 1), complex(nan, 1), tolerance)
    for got in (0.0, None, "nan", [nan], {"x": [1, 2.0, (nan, "a")]}, {"x": [1, nan, (nan, "b")]}):
        assert not equal(got, nan, tolerance)
        assert not equal(got, wanted, tolerance)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (0.1 + 0.2, 0.3),
        ([0.1 + 0.2, "a"], [0.3, "a"]),
        ({"x": (1e9 + 1,)}, {"x": (1e9,)}),
        (1e-9, 0.0),
        (math.inf, math.inf),
        (1, 1.0000001),
        (3 + 4j, 3 + 4.000001j),
    ],
)
def test_within_tolerance(got, expected):
    assert equal(got, expected, 1e-6)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1.1, 1.0),
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, -math.inf),
        (math.inf, 1e308),
        (10**400, 1.0),
        (True, 1.0000001),
        ("1", 1.0),
        ([1.0], (1.0,)),
        ([1.0], [1.0, 1.0]),
        ({"x": 1.0}, {"y": 1.0}),
        ({"x": 1.0}, [1.0]),
        ("a", "b"),
    ],
)
def test_out_of_tolerance(got, expected):
    assert not equal(got, expected, 1e-6)


def test_output_is_compared_without_white_space_at_ends():
    assert same_output("a \nb\n\n", "a\nb")
    assert same_output("a\r\nb", "a\nb\n")
    assert not same_output(" a", "a")
    assert not same_output("a\n\nb", "a\nb")
    assert not same_output("", "a")


def test_a_million_lines_are_not_split_to_see_that_there_are_too_many():
    hostile = "\n " * 1_000_000 + "x"
    tracemalloc.start()
    try:
        assert not same_output(hostile, "x")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # a list of the lines takes 8 MB
    finally:
        tracemalloc.stop()
