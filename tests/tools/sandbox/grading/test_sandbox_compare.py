"""The host's comparison of values and output."""

from __future__ import annotations

import math
import time
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


PRINTED = {
    ("111", "11"): [
        ("0.2500000000", "0.25"),
        ("3", "3.0"),
        ("3.0", "3"),
        ("0.0000001", "1e-07"),
        ("0.5\n0.25\n", "0.500\n0.2500\n"),
        ("1e3", "1000"),
        ("1000000", "1e6"),
        ("-5", "-5.0"),
        ("+3", "3"),
        ("3", "+3"),
        ("0", "-0"),
        ("-0.0", "0.0"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("inf", "Infinity"),
        ("1_000", "1000"),
        ("1000", "1_000"),
        (".5", "0.5"),
        ("5.", "5"),
        ("a b", "a b "),
        ("a b", " a b"),
        ("a\nb", "a\r\nb\r\n"),
        ("a\nb", " a\n b"),
        ("a\nb", "\na\nb\n\n"),
        ("", ""),
        ("1.0", "1"),
        ("1e-07\n2", "0.0000001\n2"),
        ("2\n3", "2\n3.0"),
        ("1\n2.0", "1.0\n2"),
    ],
    ("110", "11"): [
        ("a\nb", "a\n\nb"),
        ("a\n\nb", "a\nb"),
    ],
    ("110", "10"): [
        ("0.3333333333", "0.333333"),
        ("0.3333333333", "0.33333"),
        ("1000000", "1000009.0"),
        ("0.25", "0.2500001"),
        ("0", "1e-9"),
        ("inf", "1e400"),
        ("999999999999999999999999999999", "1e30"),
        ("123456789.123", "123456789.124"),
        ("3.14159", "3.1416"),
        ("1e5", "100001"),
        ("100000", "100000.5"),
    ],
    ("110", "00"): [
        ("-1000000", "-1000009"),
    ],
    ("101", "11"): [
        ("0.5 0.25", "0.50 0.250"),
        ("1 2 3", "1.0 2.0 3.0"),
        ("1 2", "1  2"),
        ("1 2", "1\t2"),
        ("0.1 0.2\n0.3 0.4", "0.10 0.20\n0.30 0.40"),
        ("1.10 2", "1.1 2"),
    ],
    ("101", "01"): [
        ("007", "7"),
        ("7", "007"),
        ("0011", "11"),
        ("٣", "3"),
    ],
    ("100", "11"): [
        ("a b", "a  b"),
        ("a b", "a\tb"),
        ("a\nb", "a\n \nb"),
    ],
    ("100", "00"): [
        ("0.3333333333", "0.3333"),
        ("0.3333333333", "0.333"),
        ("1000000", "1000009"),
        ("0.25", "0.25001"),
        ("0", "1e-7"),
        ("0.0000001", "0"),
        ("1 2 3", "3 2 1"),
        ("1 2 2", "1 2"),
        ("YES\nNO\nYES", "YES\nNO"),
        ("a\nb", "b\na"),
        ("999999999999999999999999999999", "999999999999999999999999999998"),
        ("0.1\n0.2", "0.2\n0.1"),
    ],
    ("001", "01"): [
        ("YES\n0.5", "YES\n0.50"),
        ("YES\n3", "YES\n3.0"),
        ("2.50\nnan", "2.5\nnan"),
    ],
    ("000", "11"): [
        ("a\n \nb", "a\nb"),
    ],
    ("000", "00"): [
        ("0.25", "0.26"),
        ("YES", "yes"),
        ("Case 1: 0.5", "Case 1: 0.50"),
        ("nan", "NaN"),
        ("1.0", "inf"),
        ("inf", "1.0"),
        ("1", "nan"),
        ("-inf", "inf"),
        ("0.5", "0,5"),
        ("1/2", "0.5"),
        ("50%", "0.5"),
        ("a\nb", "a b"),
        ("a b", "a\nb"),
        ("1\n2", "1\n2\n3"),
        ("1\n2", "1"),
        ("1 2", "1 2 3"),
        ("", "a"),
        ("a", ""),
        ("abc", "abcd"),
        ("0x10", "16"),
        ("True", "1"),
        ("1", "True"),
        ("1 000", "1000"),
        ("1.5 a", "1.50 a"),
        ("12 34", "1234"),
        ("[1, 2]", "[1,2]"),
        ("100000", "100002"),
    ],
}
"""Expected and printed texts, by the verdicts of the graders of APPS, verl and LiveCodeBench, which
were run to make this table, and by the verdicts here under the rules "apps" and "livecodebench"."""
ROWS = [(*pair, *verdicts) for verdicts, pairs in PRINTED.items() for pair in pairs]


@pytest.mark.parametrize(("expected", "printed", "graders", "ours"), ROWS)
def test_output_by_the_rules_of_data_sets(expected, printed, graders, ours):
    for rules, verdict in zip(("apps", "livecodebench"), ours, strict=True):
        assert same_output(printed, expected, rules) is (verdict == "1")


def test_where_apps_and_verl_agree_the_verdict_is_theirs():
    apart = [row[:2] for row in ROWS if row[2][0] == row[2][1] != row[3][0]]
    assert apart == [("-1000000", "-1000009"), ("a\n \nb", "a\nb")]


@pytest.mark.parametrize("rules", ["apps", "livecodebench"])
@pytest.mark.parametrize(
    "hostile",
    [
        *("9" * 1_000_000, "0." + "3" * 1_000_000, "1e" + "9" * 100_000, "-" + "9" * 1_000_000),
        *("1 " * 1_000_000, "1\n" * 1_000_000, "\n" * 1_000_000 + "x", "\n " * 1_000_000 + "x"),
        *("nan", "sNaN", "1\0", "\ud800", "\u0663", "--1", "1e999999999999999999999"),
    ],
)
def test_no_output_raises_or_takes_long(hostile, rules):
    started = time.process_time()
    for expected in ("1", "1.5", "-1", "x y"):
        assert not same_output(hostile, expected, rules)
    assert time.process_time() - started < 1.0


def test_long_numbers_within_the_tolerance():
    expected = "\n".join(f"{n / 7:.12f}" for n in range(5_000))
    printed = "\n".join(f"{n / 7:.15g}" for n in range(5_000))
    started = time.process_time()
    assert same_output(printed, expected, "apps")
    assert not same_output(printed + "\n1", expected, "apps")
    assert time.process_time() - started < 1.0
