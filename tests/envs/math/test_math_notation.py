"""Notation that math-verify misreads is rewritten; all else is left as it is."""

from __future__ import annotations

import pytest

from envs.math.verification.notation import standard


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"1\,000", "1000"),
        (r"12\,345\;678", "12345678"),
        (r"\{1\,000, 2\,000\}", r"\{1000, 2000\}"),
        ("1.5e3", r"(1.5\times 10^{3})"),
        ("1.5e-3", r"(1.5\times 10^{-3})"),
        ("1e+05", r"(1\times 10^{05})"),
        ("2E6", r"(2\times 10^{6})"),
        (r"\varnothing", r"\emptyset "),
        ("12_{9}", "N_{12b9}"),
        ("012 _ { 9 }", "N_{12b9}"),
        ("12_{10}", "12"),
        ("4_6+5_6", "N_{4b6}+N_{5b6}"),
    ],
)
def test_what_is_rewritten(written, read):
    assert standard(written) == read


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "1,000", r"(1,\,200)", r"1\,00", r"0.1\,234", r"1\,0000", r"12\, 345"),
        # Euler's number, variables, hexadecimal digits.
        *("2e", "2e+3", "2e-1", "2e^3", r"2e\pi", "e3", "3e2x", "3e2^2", "xe3", "0x1e5"),
        # Bounds of an integral, indices, logarithms.
        *(r"\int^1_0 x", r"\int_0^1 x", "x_1", "2x_1", r"\log_2 8", r"10\log_2 8", "x^2_1"),
        r"\varnothings",
    ],
)
def test_what_is_left_alone(text):
    assert standard(text) == text


def test_the_longest_texts_are_read_in_linear_time():
    for part in ("1", " ", "1 ", r"1\,", "1e", "1_", "_1", "1.", "1.1e1"):
        assert standard(part * 20_000).count("1") >= part.count("1") * 20_000
